"""Embedding requests at an engine process, and vectors as numbers and bytes."""

from __future__ import annotations

import array
import asyncio
import math
import struct

import numpy as np
import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling
from headrace.core.vectors import floats, packed, shaped
from headrace.errors import HeadraceError, PromptTooLong
from headrace.serving.client.process import ProcessClient
from headrace.serving.requests.generation import Embedding, embed
from tests.serving.tiny_engine import COMMAND, FAIL, MAX_MODEL_LEN, hidden_state


def asked(name: str, prompt: tuple[int, ...], pooling: Pooling = Pooling.MEAN) -> NewRequest:
    return NewRequest(name, prompt, SamplingParams(max_tokens=0), pooling=pooling)


def test_through_a_process() -> None:
    async def run() -> None:
        client = await ProcessClient.start({}, command=COMMAND)
        try:
            mean, last = await asyncio.gather(
                embed(client, asked("a", (3, 5, 8))), embed(client, asked("b", (3, 5, 8), Pooling.LAST))
            )
            expected = np.mean([hidden_state(token) for token in (3, 5, 8)], axis=0)
            assert np.allclose(mean.vector, expected, atol=1e-7) and mean.num_prompt_tokens == 3
            assert list(last.vector) == hidden_state(8)
            prompt = tuple(range(100))
            await embed(client, asked("c", prompt, Pooling.LAST))
            again = await embed(client, asked("d", prompt, Pooling.LAST))
            assert again.num_cached_tokens == 96 and again.num_prompt_tokens == 100
            with pytest.raises(HeadraceError, match="failed on this request"):
                await embed(client, asked("e", (FAIL,)))
            with pytest.raises(PromptTooLong):
                await embed(client, asked("f", (1,) * (MAX_MODEL_LEN + 1)))
            stats = await client.stats()
            assert stats.free_blocks == stats.total_blocks
        finally:
            await client.aclose()

    asyncio.run(run())


def test_a_cancelled_one_frees_its_blocks() -> None:
    async def run() -> None:
        client = await ProcessClient.start({"step_s": 0.05}, command=COMMAND)
        try:
            tasks: list[asyncio.Task[Embedding]] = [
                asyncio.create_task(embed(client, asked(f"{i}", tuple(range(i, i + 500))))) for i in range(8)
            ]
            await asyncio.sleep(0.07)
            for task in tasks[1:]:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(outcomes[0], Embedding)
            assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            stats = await client.stats()
            assert stats.running == stats.waiting == 0 and stats.free_blocks == stats.total_blocks
        finally:
            await client.aclose()

    asyncio.run(run())


def test_bytes_are_little_endian_float32() -> None:
    vector = array.array("f", [0.0, 1.5, -2.25])
    assert packed(vector) == struct.pack("<3f", *vector)
    assert floats(packed(vector)) == vector


def test_shapes() -> None:
    vector = [3.0, 4.0, 12.0]
    assert list(shaped(vector, None, False)) == vector
    assert list(shaped(vector, 2, False)) == [3.0, 4.0]
    assert list(shaped(vector, 2, True)) == pytest.approx([0.6, 0.8])
    assert math.fsum(v * v for v in shaped(vector, None, True)) == pytest.approx(1.0)
    assert list(shaped([0.0, 0.0], None, True)) == [0.0, 0.0]
