"""Keys take turns at compiling grammars, over HTTP: the name of a key is the user in the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import needs
from tests.server.conftest import ServeProcess, serve
from tests.server.keyring import bearer, secret
from tests.waiting import LONG_S

needs.package("llguidance")

FLOOD = 8


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    keys = [{"name": name, "key": secret(name)} for name in ("greedy", "modest")]
    path.write_text("\n".join(map(json.dumps, keys)))
    made = serve("tale", "--port", "0", "--num-threads", "1", "--api-key-file", str(path))
    yield made
    made.process.terminate()
    made.process.wait(LONG_S)


def body(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"prompt": [7, 8, 9], "max_tokens": 8, "guided_json": schema, **fields}


async def answered_before(url: str, key: str) -> int:
    """How many of a greedy key's explosive schemas are answered before a small one that came after them."""
    answers: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def send(number: int) -> None:
            # The field "user" differs each time, which must not help.
            schema = {"type": "integer", "multipleOf": 999_983 - 2 * number, "title": key}
            expected = body(schema, user=f"user {number}")
            answer = await client.post("/v1/completions", json=expected, headers=bearer("greedy"))
            answers.append(answer.status_code)

        flood = [asyncio.ensure_future(send(i)) for i in range(FLOOD)]
        while not answers:  # all have come, and the second one is at work
            await asyncio.sleep(0.01)
        before = len(answers)
        small = body({"type": "object", "properties": {f"of {key}": {"type": "boolean"}}})
        answer = await client.post("/v1/completions", json=small, headers=bearer(key))
        assert answer.status_code == 200, answer.text
        meanwhile = len(answers) - before
        await asyncio.gather(*flood)
    assert len(answers) == FLOOD and 200 not in answers  # none could be compiled
    return meanwhile


@pytest.mark.long
@pytest.mark.parametrize("key", ["modest", "greedy"])
def test_a_key_waits_only_for_its_own_grammars(served: ServeProcess, key: str) -> None:
    meanwhile = asyncio.run(answered_before(served.url, key))
    if key == "greedy":  # the order without turns
        assert meanwhile > FLOOD // 2
    else:
        assert meanwhile < FLOOD // 2  # one or two, and those that were refused before the request came
