"""Authentication: every route requires a key, checked in constant time, and no key is ever shown."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Message, Scope

from headrace.cli import main
from headrace.server.access import key_check, keys
from headrace.server.access.keys import Caller, KeyRing
from headrace.server.access.traffic import Traffic
from headrace.server.app import create_app
from tests.running import over
from tests.server.conftest import TinyServer, serve
from tests.server.keyring import bearer, code, complete, keyed, secret
from tests.waiting import LONG_S, until

OPEN = {"/health", "/ready", "/", "/docs", "/calculator"}
"""All that may be had without a key, besides the files of the page."""
PAGE = "/page/"

ANN, BOSS = Caller("ann"), Caller("boss", admin=True, max_priority=None)


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(ANN, BOSS))
    yield server
    server.close()


def flat(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, BaseRoute]]:
    """(path, route) of all routes, also of those that FastAPI keeps as routers inside the app."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield prefix + getattr(route, "path", ""), route
        else:
            yield from flat(inner.routes, prefix + route.include_context.prefix)  # type: ignore[attr-defined]


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every route of the app, those of mounted apps by a path inside."""
    found = []
    for path, route in flat(app.routes):
        if isinstance(route, Mount):
            found += [("GET", f"{path}/x"), ("POST", f"{path}/x")]
        elif isinstance(route, Route):
            path = re.sub(r"{[^}]*}", "x", path)
            found += [(method, path) for method in sorted(route.methods or {"GET"})]
        else:
            raise AssertionError(f"{route} is of a kind that this test does not know")
    return found


async def _status(app: FastAPI, method: str, path: str, headers: dict[str, str]) -> int:
    """What the app answers to a request with an empty body; the rest of the answer is not waited for."""
    status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    parts = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        return next(parts, None) or await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            status.set_result(message["status"])

    lines = [
        (name.lower().encode(), value.encode()) for name, value in {"Host": "127.0.0.1", **headers}.items()
    ]
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": lines,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    answering = asyncio.ensure_future(app(scope, receive, send))
    await asyncio.wait({answering, status}, timeout=LONG_S, return_when=asyncio.FIRST_COMPLETED)
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    return status.result()


def answering(app: FastAPI, headers: dict[str, str]) -> set[str]:
    """Paths of the app that answer anything but 401."""

    async def ask() -> set[str]:
        return {path for method, path in routes(app) if await _status(app, method, path, headers) != 401}

    return asyncio.run(ask())


def unprotected(app: FastAPI) -> set[str]:
    """Paths that need a key."""
    wrong: Iterable[dict[str, str]] = (
        {},
        {"Authorization": "Bearer sk-wrong"},
        {"Authorization": f"Basic {secret('ann')}"},
        {"Authorization": secret("ann")},
        {"Authorization": "Bearer"},
        {"X-Api-Key": "sk-wrong"},
        {"X-Api-Key": f"Bearer {secret('ann')}"},
        {"X-Api-Key": secret("ann"), "Authorization": "Bearer sk-wrong"},
    )
    found = {path for headers in wrong for path in answering(app, headers)}
    return {
        path for path in found if path not in OPEN and not (path.startswith(PAGE) and _is_file(app, path))
    }


def _is_file(app: FastAPI, path: str) -> bool:
    """The path is one of the page's own files: under the folder, and served to GET and HEAD only."""
    served = [
        set(route.methods or ()) for at, route in flat(app.routes) if isinstance(route, Route) and at == path
    ]
    return not served or all(methods <= {"GET", "HEAD"} for methods in served)


def test_every_route_requires_a_key(server: TinyServer) -> None:
    assert unprotected(server.app) == set()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/usage", "/openapi.json"} <= {
        path for _, path in routes(server.app)
    }
    for path in (
        "/nowhere",
        "/v1/completions/",
        "/health//",
        "/health/x",
        "/Health",
        "/page",
    ):
        assert code(server.http.get(path)) == (
            401,
            "invalid_api_key",
        )  # its existence must not be revealed


def app_with_keys(server: TinyServer) -> FastAPI:
    """A second app of the same kind, to be spoiled."""
    options = keyed(ANN)
    return create_app(over(server.client), ["tiny"], traffic=Traffic(options.rules))


def test_a_second_app_is_protected_too(server: TinyServer) -> None:
    assert unprotected(app_with_keys(server)) == set()


def leave_a_path_open(app: FastAPI, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(key_check, "OPEN_PATHS", key_check.OPEN_PATHS | {"/usage"})
    return "/usage"


def open_a_folder(app: FastAPI, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(key_check, "OPEN_FOLDERS", ("/v1/mod",))
    return "/v1/models"


def route_under_the_page(app: FastAPI, patch: pytest.MonkeyPatch) -> str:
    app.add_api_route("/page/act", lambda: "done", methods=["POST"])
    return "/page/act"


def accept_any_scheme(app: FastAPI, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(Traffic, "caller", lambda self, header: self.keys.find((header or b"").rpartition(b" ")[2]))
    return "/v1/models"


def skip_the_check(app: FastAPI, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(KeyRing, "find", lambda self, token: ANN)
    return "/v1/models"


@pytest.mark.parametrize(
    "plant",
    [
        leave_a_path_open,
        accept_any_scheme,
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (open_a_folder, route_under_the_page, skip_the_check)
        ),
    ],
)
def test_an_unprotected_route_is_found(
    plant: Any, server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_with_keys(server)
    assert plant(app, monkeypatch) in unprotected(app)


def test_the_right_key_opens(server: TinyServer) -> None:
    assert complete(server, "ann").status_code == 200
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=secret("ann"), max_retries=0) as client:
        assert client.completions.create(model="tiny", prompt=[1], max_tokens=2).choices
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.completions.create(model="tiny", prompt=[1])
    assert caught.value.code == "invalid_api_key" and caught.value.type == "authentication_error"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


def test_two_keys_are_none(server: TinyServer) -> None:
    both = [("Authorization", f"Bearer {secret('ann')}"), ("Authorization", "Bearer sk-wrong")]
    for headers in (both, both[::-1], [both[0]] * 2):
        assert code(server.http.get("/v1/models", headers=httpx.Headers(headers))) == (401, "invalid_api_key")


def test_a_long_or_odd_key_is_a_wrong_key(server: TinyServer) -> None:
    for token in (b"x" * 8000, b"\xff\xfe", b"\x80" * 100, b"a b c"):
        answer = server.http.get("/v1/models", headers={b"Authorization": b"Bearer " + token})
        assert answer.status_code == 401


class Comparisons:
    """Counts what `hmac.compare_digest` is asked, and answers itself."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int]] = []
        original = keys.hmac.compare_digest

        def counted(left: bytes, right: bytes) -> bool:
            self.seen.append((len(left), len(right)))
            return original(left, right)

        patch.setattr(keys.hmac, "compare_digest", counted)


@pytest.mark.parametrize("token", [secret("k0"), secret("k9"), "sk-wrong", "", "x" * 5000])
def test_every_key_is_compared_for_every_caller(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of equal length, all of them, by the function that takes the same time for all."""
    ring = KeyRing(keyed(*(Caller(f"k{n}") for n in range(10))).rules.keys.load())
    comparisons = Comparisons(monkeypatch)
    found = ring.find(token.encode())
    assert (found is None) == (token not in (secret("k0"), secret("k9")))
    assert comparisons.seen == [(32, 32)] * 10


def test_a_search_that_ends_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = Comparisons(monkeypatch)
    ring = KeyRing(keyed(*(Caller(f"k{n}") for n in range(10))).rules.keys.load())
    digest = keys.digest_of(secret("k0"))
    assert any(keys.hmac.compare_digest(key.digest, digest) for key in ring._keys)
    assert comparisons.seen != [(32, 32)] * 10


@pytest.mark.parametrize("path", ["/usage", "/metrics", "/live"])
def test_routes_about_other_keys_need_an_administrator(server: TinyServer, path: str) -> None:
    assert code(server.http.get(path, headers=bearer("ann"))) == (403, "not_permitted")
    with server.http.stream("GET", path, headers=bearer("boss")) as answer:
        assert answer.status_code == 200


def test_usage_equals_the_clients_counts() -> None:
    server = TinyServer(traffic=keyed(ANN, BOSS))
    try:
        seen = [
            complete(server, "ann", prompt=[[1] * 20, [2] * 30], n=2, max_tokens=5).json()["usage"],
            complete(server, "ann", prompt=[1] * 40, max_tokens=3).json()["usage"],
        ]
        stream = complete(server, "ann", prompt=[7] * 9, max_tokens=6, stream=True)
        assert stream.text.endswith("[DONE]\n\n")
        assert complete(server, "ann", prompt=[5000]).status_code == 400
        assert complete(server).status_code == 401
        answer = server.http.get("/usage", headers=bearer("boss")).json()
        assert answer["unauthorized"] == 1
        assert answer["keys"]["ann"] == {
            "requests": 4,  # those that came to the engine's door
            "prompt_tokens": sum(usage["prompt_tokens"] for usage in seen) + 9,
            "completion_tokens": sum(usage["completion_tokens"] for usage in seen) + 6,
            "cached_tokens": sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in seen),
            "refused": {"invalid_params": 1},
        }
        assert answer["keys"]["ann"]["cached_tokens"] > 0
        assert "boss" not in answer["keys"]
        assert secret("ann") not in json.dumps(answer)
    finally:
        server.close()


def test_usage_counts_cached_tokens_of_disconnected_clients() -> None:
    server = TinyServer(traffic=keyed(ANN, BOSS), step_s=0.01)

    def used() -> dict[str, Any]:
        counts: dict[str, Any] = server.http.get("/usage", headers=bearer("boss")).json()["keys"]["ann"]
        return counts

    try:
        before = complete(server, "ann", prompt=[1] * 40, max_tokens=1).json()["usage"][
            "prompt_tokens_details"
        ]
        again = complete(server, "ann", prompt=[1] * 40, max_tokens=1).json()["usage"][
            "prompt_tokens_details"
        ]
        assert before["cached_tokens"] == 0 < again["cached_tokens"] == used()["cached_tokens"]
        body = {"prompt": [1] * 40, "max_tokens": 150, "n": 2, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body, headers=bearer("ann")) as answer:
            assert next(answer.iter_lines()).startswith("data: {")
        until(lambda: used()["prompt_tokens"] == 120)
        assert used()["cached_tokens"] == 2 * again["cached_tokens"]
        assert 2 < used()["completion_tokens"] < 300
    finally:
        server.close()


def test_keys_are_read_again_on_sighup_and_never_shown(tmp_path: Path) -> None:
    def write(*names: str) -> None:
        path.write_text(json.dumps([{"name": name, "key": secret(name)} for name in names]))

    def models(name: str) -> int:
        return httpx.get(f"{served.url}/v1/models", headers=bearer(name)).status_code

    def says(text: str) -> None:
        assert served.process.stdout is not None
        while True:
            line = served.process.stdout.readline()
            assert line, f"the server never said {text!r}"
            said.append(line)
            if text in line:
                return

    path, said = tmp_path / "keys.json", []
    write("ann", "bob")
    served = serve(
        "tale", "--port", "0", "--num-threads", "1", "--api-key-file", str(path), "--log-level", "debug"
    )
    try:
        said.append(served.said)
        assert [models(name) for name in ("ann", "bob", "cat")] == [200, 200, 401]
        write("bob", "cat")
        served.process.send_signal(signal.SIGHUP)
        says("2 keys are in force")
        assert [models(name) for name in ("ann", "bob", "cat")] == [401, 200, 200]
        path.write_text(f'[{{"name": "cat", "key": "{secret("dog")}"')
        served.process.send_signal(signal.SIGHUP)
        says("the keys are unchanged")
        assert [models(name) for name in ("ann", "bob", "cat", "dog")] == [401, 200, 200, 401]
        (engine,) = served.descendants()
        written = Path(f"/proc/{engine}/cmdline").read_bytes() + Path(f"/proc/{engine}/environ").read_bytes()
    finally:
        served.process.terminate()
        assert served.process.wait(30) == 0
    assert served.process.stdout is not None
    text = "".join(said) + served.process.stdout.read() + written.decode(errors="replace")
    assert "GET /v1/models" in text  # the log does tell of requests
    assert [name for name in ("ann", "bob", "cat", "dog") if secret(name) in text] == []


@pytest.mark.long
def test_hangups_while_the_model_loads_do_not_end_the_server(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([{"name": "ann", "key": secret("ann")}]))
    served = serve("tale", "--port", "0", "--num-threads", "1", "--api-key-file", str(path), hangup=True)
    try:
        assert httpx.get(f"{served.url}/v1/models", headers=bearer("ann")).status_code == 200
    finally:
        served.process.terminate()
        assert served.process.wait(30) == 0


def test_a_wrong_key_file_is_reported_before_the_model_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    path.write_text("[]")
    assert main(["serve", "tale", "--api-key-file", str(path)]) == 1
    assert capsys.readouterr().err == f"headrace: error: the key file {path} must list at least one key\n"


@pytest.mark.long
def test_a_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", secret("env"))
    served = serve("tale", "--port", "0", "--num-threads", "1", "--api-key", secret("line"))
    try:
        found = [
            httpx.get(f"{served.url}/v1/models", headers=bearer(name)).status_code
            for name in ("env", "line", "x")
        ]
        assert found == [200, 200, 401]
        assert httpx.get(f"{served.url}/health").status_code == 200
    finally:
        served.process.terminate()
        assert served.process.wait(30) == 0


@pytest.mark.parametrize(
    ("host", "keys", "loud"),
    [("127.0.0.1", False, False), ("localhost", False, False), ("0.0.0.0", False, True), ("::", False, True),
     ("10.1.2.3", False, True), ("0.0.0.0", True, False)],
)  # fmt: skip
def test_the_server_warns_without_keys(
    host: str, keys: bool, loud: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        keyed(*([ANN] if keys else [])).warn(host)
    assert ("NO KEY" in caplog.text) == loud
