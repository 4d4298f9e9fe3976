"""Whose prefix blocks a prompt may reuse, seen where callers see it: in `cached_tokens`, from the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.core import prefix_cache
from headrace.server.access.keys import Caller
from headrace.server.access.traffic import Traffic
from headrace.serving.requests import outputs as request_metrics
from tests.server.conftest import ServeProcess, TinyServer, serve
from tests.server.keyring import bearer, complete, keyed, secret

STORY = "Once upon a time there was a little fox who lived in the deep green forest with his mother. " * 6


def with_keys(folder: Path, *flags: str) -> ServeProcess:
    path = folder / "keys.json"
    path.write_text(json.dumps([{"name": name, "key": secret(name)} for name in ("ann", "bob")]))
    return serve("tale", "--port", "0", "--num-threads", "1", "--api-key-file", str(path), *flags)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    served = with_keys(tmp_path_factory.mktemp("keys"))
    yield served
    served.process.terminate()
    served.process.wait(30)


def usage(served: ServeProcess, name: str, prompt: str, **body: Any) -> Any:
    answer = httpx.post(
        f"{served.url}/v1/completions", headers=bearer(name), timeout=60,
        json={"prompt": prompt, "max_tokens": 2, "temperature": 0, **body},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def cached(served: ServeProcess, name: str, prompt: str, **body: Any) -> int:
    count: int = usage(served, name, prompt, **body)["prompt_tokens_details"]["cached_tokens"]
    return count


def test_keys_share_no_prefix(served: ServeProcess) -> None:
    prompt = "Keys. " + STORY
    assert cached(served, "ann", prompt) == 0
    assert cached(served, "ann", prompt) > 32
    assert cached(served, "bob", prompt) == 0
    assert cached(served, "bob", prompt) > 32


def test_salts_share_no_prefix_within_a_key_either(served: ServeProcess) -> None:
    prompt = "Salts. " + STORY
    assert cached(served, "ann", prompt, cache_salt="red") == 0
    assert cached(served, "ann", prompt, cache_salt="red") > 32
    assert cached(served, "ann", prompt, cache_salt="blue") == 0
    assert cached(served, "ann", prompt) == 0
    assert cached(served, "bob", prompt, cache_salt="red") == 0


@pytest.mark.parametrize("guess", ["ann", "ann\0", "ann\0red", "\0"])
def test_a_salt_that_is_made_up_opens_no_other_key(served: ServeProcess, guess: str) -> None:
    prompt = f"Guesses {guess!r}. " + STORY
    assert cached(served, "ann", prompt) == cached(served, "ann", prompt, cache_salt="red") == 0
    assert cached(served, "bob", prompt, cache_salt=guess) == 0
    hashed = Traffic(keyed(Caller("ann")).rules).salt(Caller("ann"), "")
    assert cached(served, "bob", prompt, cache_salt=hashed) == 0


@pytest.mark.long
def test_prefixes_are_shared_across_keys_where_that_is_asked_for(tmp_path: Path) -> None:
    served = with_keys(tmp_path, "--share-prefix-across-keys")
    try:
        assert cached(served, "ann", STORY) == 0
        assert cached(served, "bob", STORY) > 32
        assert cached(served, "bob", STORY, cache_salt="red") == 0  # salts keep apart all the same
        assert cached(served, "ann", STORY, cache_salt="red") > 32
    finally:
        served.process.terminate()
        assert served.process.wait(30) == 0


def explained() -> list[Any]:
    """What the server reports to bob about a prompt of ann's, and about one that was never sent."""
    server = TinyServer(traffic=keyed(Caller("ann"), Caller("bob")))
    try:
        assert complete(server, "ann", prompt=[7] * 64).status_code == 200
        reported = []
        for token in (7, 8):
            answer = complete(server, "bob", prompt=[token] * 64, explain=True).json()
            (prompt,) = answer["usage"]["headrace"]["prompts"]
            reported.append((prompt["cached_tokens"], prompt["cache_miss"]))
        return reported
    finally:
        server.close()


def test_a_cache_miss_does_not_reveal_other_keys() -> None:
    assert explained() == [(0, "never seen")] * 2


def test_a_reason_that_reveals_other_keys_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_metrics, "_reason", lambda miss: miss and miss.reason)
    assert explained() == [(0, "other salt"), (0, "never seen")]


@pytest.mark.long
def test_a_salt_without_the_key_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the caller's own salt is passed on as it is."""
    counts = []
    for planted in (False, True):
        if planted:
            monkeypatch.setattr(Traffic, "salt", lambda self, caller, asked: asked)
        server = TinyServer(traffic=keyed(Caller("ann"), Caller("bob")))
        try:
            complete(server, "ann", prompt=[7] * 64)
            answer = complete(server, "bob", prompt=[7] * 64)
            counts.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        finally:
            server.close()
    assert counts[0] == 0 < counts[1]
    assert prefix_cache.root_key("") != prefix_cache.root_key("ann")
