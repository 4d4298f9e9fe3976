"""Keys share the engine by weight: the real model, over HTTP, with one caller who sends far too much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.server.conftest import ServeProcess, serve
from tests.server.keyring import bearer, secret

GREEDY, MODEST = 100, 60
PROMPT, OUTPUT = 24, 16


def served_with(folder: Path, weight: float, *flags: str) -> Iterator[ServeProcess]:
    path = folder / "keys.json"
    keys = [{"name": "greedy"}, {"name": "modest", "weight": weight}]
    path.write_text("\n".join(json.dumps(key | {"key": secret(key["name"])}) for key in keys))  # type: ignore[arg-type]
    served = serve(
        "tale",
        "--port",
        "0",
        "--num-threads",
        "1",
        "--max-num-seqs",
        "4",
        "--api-key-file",
        str(path),
        *flags,
    )
    yield served
    served.process.terminate()
    served.process.wait(30)


async def race(served: ServeProcess, until: int) -> dict[str, int]:
    """Completions that ended for each key from the modest one's first token to the end of its `until`th.

    The greedy one sends a hundred prompts at once, and the modest one its own when that has begun. Both must still have
    some that wait in the end.
    """
    rng, begun, done = Random(2), asyncio.Event(), asyncio.Event()
    ended = {"greedy": 0, "modest": 0}
    before: dict[str, int] = {}

    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:

        async def one(name: str, count: int) -> None:
            prompts = [[rng.randrange(5, 2000) for _ in range(PROMPT)] for _ in range(count)]
            body = {"prompt": prompts, "max_tokens": OUTPUT, "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body, headers=bearer(name)) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    begun.set()
                    if name == "modest" and not before:
                        before.update(ended)
                    ended[name] += '"finish_reason":"length"' in line
                    if ended["modest"] >= until:
                        done.set()

        tasks = [asyncio.ensure_future(one("greedy", GREEDY))]
        try:
            await asyncio.wait_for(begun.wait(), 60)
            tasks.append(asyncio.ensure_future(one("modest", MODEST)))
            await asyncio.wait_for(done.wait(), 60)
            found = {name: count - before[name] for name, count in ended.items()}
            assert ended["greedy"] < GREEDY - 4 and ended["modest"] < MODEST - 4, "both must still wait"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return found


def share(served: ServeProcess, until: int) -> float:
    found = asyncio.run(race(served, until))
    return found["modest"] / sum(found.values())


@pytest.mark.parametrize(("weight", "until"), [(1.0, 40), (3.0, 54)])
def test_a_greedy_key_starves_nobody(tmp_path: Path, weight: float, until: int) -> None:
    for served in served_with(tmp_path, weight):
        assert share(served, until) == pytest.approx(weight / (1 + weight), rel=0.12)


def test_without_the_fair_order_it_does(tmp_path: Path) -> None:
    """The same race under first come, first served: the modest key gets nothing while the greedy one waits."""
    for served in served_with(tmp_path, 1.0, "--scheduling-policy", "fcfs"):
        with pytest.raises(AssertionError, match="both must still wait"):
            share(served, 1)
