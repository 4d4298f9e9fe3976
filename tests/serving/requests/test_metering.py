"""The meter is called once with what a request has used, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling
from headrace.errors import EngineDead, InvalidParams, Overloaded
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.client.stream import OutputStream
from headrace.serving.requests.generation import Generation, embed
from headrace.serving.requests.metering import Meter, Used
from headrace.text.tokenizer import Tokenizer
from tests.serving.client.test_process_client import LONG, engine, idle, read, run_async, until
from tests.serving.conftest import TALE
from tests.serving.grammar.test_gate import hard, request, with_engine

LEASE = 5
SLOW_PREFILL = {"step_s": 0.01, "max_num_batched_tokens": 16}


class Noted:
    """A meter that records its calls."""

    def __init__(self) -> None:
        self.paid = 0
        self.released = 0
        self.used: list[Used] = []

    def renew(self, output_tokens: int) -> int:
        assert output_tokens > self.paid and not self.used
        self.paid = output_tokens + LEASE
        return self.paid

    def release(self) -> None:
        assert not self.used
        self.released += 1

    def settle(self, used: Used) -> None:
        self.used.append(used)

    async def settled(self) -> Used:
        async def there() -> bool:
            return bool(self.used)

        await until(there)
        assert self.released == len(self.used) == 1
        return self.used[0]


async def scheduled(client: ProcessClient, tokens: int) -> None:
    """Wait until steps of so many tokens in all have been planned."""

    async def far() -> bool:
        return (await client.stats()).scheduler.scheduled_tokens >= tokens

    await until(far)


@run_async
async def test_a_request_that_ends_by_itself() -> None:
    async with engine() as client:
        for cached in (0, 32):
            meter = Noted()
            new = NewRequest("r", tuple(range(40)), SamplingParams(max_tokens=20, n=2))
            generation = await Generation.start(_Metered(client, meter), None, new)
            async for _ in arrivals(generation):
                assert bool(meter.used) == generation.exhausted
            assert await meter.settled() == Used(40, cached, (20, 20), 40)
            assert meter.paid >= 40
            generation.cancel()
            assert len(meter.used) == 1


@run_async
async def test_a_stop_string_counts_the_same_as_the_reader() -> None:
    async with engine(step_s=0.0005, stream_interval_s=0.05) as client:
        meter = Noted()
        words = Tokenizer.from_folder(TALE)
        params = SamplingParams(max_tokens=200, stop=(words.decode([309]),))
        generation = await Generation.start(_Metered(client, meter), words, NewRequest("r", (300,), params))
        async for _ in arrivals(generation):
            pass
        taken = generation.pending.completions[0].num_tokens
        assert (await client.stats()).scheduler.output_tokens > taken
        assert await meter.settled() == Used(1, 0, (taken,), taken)


@run_async
async def test_an_abort_counts_what_was_computed() -> None:
    async with engine(**SLOW_PREFILL) as client:
        meter = Noted()
        await client.submit(NewRequest("r", (1,) * 400, LONG), meter)
        await scheduled(client, 100)
        client.abort("r")
        assert meter.released == 1
        used = await meter.settled()
        assert used == Used((await client.stats()).scheduler.scheduled_tokens, 0, (0,), 0)
        assert 100 <= used.prompt_tokens < 400


@run_async
async def test_a_submission_that_is_cancelled_counts_what_was_computed_meanwhile() -> None:
    async with engine(**SLOW_PREFILL) as client:
        meter = Noted()
        waiting = asyncio.create_task(client.submit(NewRequest("r", (1,) * 400, LONG), meter))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        used = await meter.settled()
        assert used.prompt_tokens == (await client.stats()).scheduler.scheduled_tokens < 400


@run_async
async def test_an_embedding_that_is_abandoned_counts_what_was_computed() -> None:
    async with engine(**SLOW_PREFILL) as client:
        meter = Noted()
        new = NewRequest("r", (1,) * 400, SamplingParams(max_tokens=0), pooling=Pooling.MEAN)
        task = asyncio.create_task(embed(_Metered(client, meter), new))
        await scheduled(client, 100)
        task.cancel()
        used = await meter.settled()
        assert used.prompt_tokens == (await client.stats()).scheduler.scheduled_tokens
        assert 100 <= used.prompt_tokens < 400
        await embed(_Metered(client, meter := Noted()), new)
        assert (await meter.settled()).total == 400


@run_async
async def test_a_refusal_uses_nothing() -> None:
    async with engine() as client:
        meter = Noted()
        with pytest.raises(InvalidParams):
            await client.submit(NewRequest("r", (99_999,), LONG), meter)
        assert await meter.settled() == Used(0, 0, (0,), 0)


@run_async
async def test_a_dropped_reader_is_charged_for_generated_tokens() -> None:
    async with engine(max_unread_bytes=10_000, step_s=0.001) as client:
        meter = Noted()
        stream = await client.submit(NewRequest("r", (1,), LONG), meter)
        await until(lambda: idle(client))
        with pytest.raises(Overloaded):
            await read(stream)
        assert not meter.used and meter.released  # until the reader says that it is done
        stream.finish()
        used = await meter.settled()
        assert used.outputs == ((await client.stats()).scheduler.output_tokens,)


@run_async
async def test_an_engine_death_charges_the_known_tokens() -> None:
    async with engine(step_s=0.01) as client:
        read_from, left = Noted(), Noted()
        generation = await Generation.start(
            _Metered(client, read_from), None, NewRequest("r", (1, 2, 3), LONG)
        )
        await client.submit(NewRequest("left", (1, 2, 3), LONG), left)
        taken = 0
        while taken < 5:
            async for deltas in arrivals(generation):
                taken += sum(len(delta.token_ids) for delta in deltas)
                break
        os.kill(client.pid, signal.SIGSTOP)  # so that it cannot report the end
        client.abort("left")
        assert not left.used
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            async for deltas in arrivals(generation):
                taken += sum(len(delta.token_ids) for delta in deltas)
        used = await read_from.settled()
        assert (used.prompt_tokens, used.cached_tokens) == (3, 0)
        assert 5 <= used.output_tokens <= taken
        await left.settled()


def test_a_request_that_leaves_while_its_grammar_is_compiled_uses_nothing(tokenizer: Tokenizer) -> None:
    async def body(client: ProcessClient) -> None:
        meter = Noted()
        waiting = asyncio.ensure_future(client.submit(request("h", hard(0)), meter))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await meter.settled() == Used(0, 0, (0,), 0)
        await client.submit(request("x", Grammar("regex", "x{3}")))

    with_engine(body)


class _Metered:
    """A Submitter with a meter for its requests."""

    def __init__(self, client: ProcessClient, meter: Noted) -> None:
        self._client, self._meter = client, meter
        self.abort = client.abort

    async def submit(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        return await self._client.submit(new, self._meter)
