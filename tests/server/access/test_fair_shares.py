"""Keys share the engine by weight: the real model, over HTTP, with one caller who sends far too much."""

from __future__ import annotations

import asyncio
import json
import time
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
    keys = [{"name": "greedy"}, {"name": "modest", "weight": weight}, {"name": "boss", "admin": True}]
    path.write_text("\n".join(json.dumps(key | {"key": secret(key["name"])}) for key in keys))  # type: ignore[arg-type]
    flags = ("--num-threads", "1", "--max-num-seqs", "4", *flags)
    served = serve("tale", "--port", "0", "--api-key-file", str(path), *flags)
    yield served
    served.process.terminate()
    served.process.wait(30)


async def race(served: ServeProcess, until: int) -> dict[str, int]:
    """Output tokens of the requests that ended for each key, from when the modest one came until `until` of its ended.

    The greedy one sends a hundred prompts at once, and the modest one its own when that has begun. Both must still have
    some that wait in the end. The server counts, so that it does not matter how late this test reads.
    """
    rng, begun = Random(2), asyncio.Event()

    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:

        async def send(name: str, count: int) -> None:
            prompts = [[rng.randrange(5, 2000) for _ in range(PROMPT)] for _ in range(count)]
            body = {"prompt": prompts, "max_tokens": OUTPUT, "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body, headers=bearer(name)) as answer:
                assert answer.status_code == 200
                async for _ in answer.aiter_raw():
                    begun.set()

        async def counted(least: int) -> dict[str, int]:
            """Tokens by key, as soon as the modest one is known and has so many."""
            deadline = time.monotonic() + 60
            while True:
                keys = (await client.get("/usage", headers=bearer("boss"))).json()["keys"]
                if keys.get("modest", {}).get("completion_tokens", -1) >= least:
                    return {name: keys[name]["completion_tokens"] for name in ("greedy", "modest")}
                assert time.monotonic() < deadline
                await asyncio.sleep(0.005)

        tasks = [asyncio.ensure_future(send("greedy", GREEDY))]
        try:
            await asyncio.wait_for(begun.wait(), 60)
            tasks.append(asyncio.ensure_future(send("modest", MODEST)))
            before = await counted(0)
            after = await counted(until * OUTPUT)
            waiting = after["greedy"] < (GREEDY - 4) * OUTPUT and after["modest"] < (MODEST - 4) * OUTPUT
            assert waiting, "both must still wait"
            return {name: after[name] - before[name] for name in after}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def share(served: ServeProcess, until: int) -> float:
    found = asyncio.run(race(served, until))
    return found["modest"] / sum(found.values())


@pytest.mark.long
@pytest.mark.parametrize(("weight", "until"), [(1.0, 36), (3.0, 45)])
def test_a_heavy_key_starves_no_other(tmp_path: Path, weight: float, until: int) -> None:
    for served in served_with(tmp_path, weight):
        assert share(served, until) == pytest.approx(weight / (1 + weight), rel=0.12)


@pytest.mark.long
def test_without_the_fair_order_a_heavy_key_starves_others(tmp_path: Path) -> None:
    """The same race under first come, first served: the modest key gets nothing while the greedy one waits."""
    for served in served_with(tmp_path, 1.0, "--scheduling-policy", "fcfs"):
        with pytest.raises(AssertionError, match="both must still wait"):
            share(served, 1)
