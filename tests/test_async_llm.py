"""AsyncLLM on the bundled model, in a real engine process: outputs, leaving early, two loops, the engine's death."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import LLM, AsyncLLM, EngineDead, Grammar, RequestOutput, RequestOutputKind, SamplingParams
from headrace.async_llm import ProcessOptions
from headrace.config import EngineConfig
from headrace.errors import (
    ConfigError,
    HeadraceError,
    InvalidParams,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    TokenizerError,
)
from headrace.extras import install_command
from headrace.server.observability.metrics import METRICS
from headrace.serving.client.stream import MAX_TAKEN
from headrace.serving.engine.state import EngineState

OPTIONS: dict[str, object] = {"num_threads": 1, "num_kv_blocks": 40, "block_size": 16, "max_model_len": 512}
PROMPT = "Once upon a time there was a fox"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True)
STREAMING: dict[str, object] = {"max_model_len": 200_000, "sliding_window": 64, "attention_sinks": 4}
"""Options under which a completion may take ENDLESS tokens: minutes, however slow this process is."""
CHAT = [{"role": "user", "content": "Tell me a story."}]


def run_async(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapped() -> None:
        async def limited() -> None:
            await asyncio.wait_for(test(), 120)

        asyncio.run(limited())

    wrapped.__name__ = test.__name__
    return wrapped


@asynccontextmanager
async def tale(**options: object) -> AsyncIterator[AsyncLLM]:
    before = children()
    async with AsyncLLM("tale", **OPTIONS | options) as engine:
        yield engine
    assert engine.state is EngineState.DEAD and children() == before


Shared = Callable[[Callable[[AsyncLLM], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """Runs a test on an engine, and in an event loop, that others use before and after: a start takes half a second."""
    with asyncio.Runner() as runner:
        engine = AsyncLLM("tale", **OPTIONS | STREAMING)
        runner.run(engine.start())

        async def limited(test: Callable[[AsyncLLM], Awaitable[None]]) -> None:
            async with asyncio.timeout(120):
                await test(engine)
                await idle(engine)

        yield lambda test: runner.run(limited(test))
        runner.run(engine.close())


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tale", show_progress=False, **OPTIONS)


def children() -> list[str]:
    """Engine processes; others render chat templates."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in found if "engine-process" in Path(f"/proc/{pid}/cmdline").read_text()]


async def idle(engine: AsyncLLM) -> None:
    """Returns when the engine holds nothing for any request."""
    while True:
        stats = await engine.stats()
        if stats.running == stats.waiting == 0 and stats.free_blocks == stats.total_blocks:
            return
        await asyncio.sleep(0.01)


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    results = [output async for output in outputs]
    assert [output.finished for output in results] == [False] * (len(results) - 1) + [True]
    return results[-1]


def exact(output: RequestOutput) -> list[tuple[object, ...]]:
    return [(one.text, one.token_ids, one.finish_reason, one.stop_reason) for one in output.outputs]


def test_outputs_are_those_of_llm(llm: LLM) -> None:
    params = [
        GREEDY,
        SamplingParams(max_tokens=60, temperature=0.8, seed=5, n=2, stop=(" the", "."), bad_words=("fox",)),
        SamplingParams(max_tokens=12, seed=1, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=12, seed=1, grammar=Grammar("regex", "[a-z]{4,9}")),
    ]

    async def served() -> list[RequestOutput]:
        async with tale() as engine:
            assert engine.get_default_sampling_params() == llm.get_default_sampling_params()
            assert engine.tokenizer.encode(PROMPT) == llm.tokenizer.encode(PROMPT)
            assert engine.facts.max_model_len == 512
            outputs = await asyncio.gather(*(last(engine.generate(PROMPT, one)) for one in params))
            outputs.append(await last(engine.chat(CHAT, GREEDY)))
            outputs.append(
                await last(engine.generate({"prompt_token_ids": [5, 6, 7], "priority": 1}, GREEDY, "mine"))
            )
            assert outputs[-1].request_id == "mine" and outputs[-1].prompt is None
            vector = await engine.embed(PROMPT, pooling="mean", dimensions=8)
            (expected,) = llm.embed(PROMPT, pooling="mean", dimensions=8, use_tqdm=False)
            assert vector.outputs.embedding == pytest.approx(expected.outputs.embedding, abs=1e-5)
            assert (vector.prompt, vector.prompt_token_ids) == (PROMPT, expected.prompt_token_ids)
            await idle(engine)
            return outputs

    there = asyncio.run(asyncio.wait_for(served(), 120))
    here = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    here += llm.chat(CHAT, GREEDY, use_tqdm=False) + llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    assert list(map(exact, there)) == list(map(exact, here))
    assert there[0].prompt == PROMPT and there[0].metrics.e2e_s is not None
    assert [at and list(at) for at in there[2].prompt_logprobs or ()] == [
        at and list(at) for at in here[2].prompt_logprobs or ()
    ]


def check_kinds(
    cumulative: list[RequestOutput], deltas: list[RequestOutput], final: list[RequestOutput]
) -> None:
    """Three streams of the same request, with two completions."""
    assert len(cumulative) > 1 and len(deltas) > 1 and len(final) == 1
    assert exact(cumulative[-1]) == exact(final[0])
    for index in range(2):
        whole = final[0].outputs[index]
        sizes = [len(output.outputs[index].token_ids) for output in cumulative]
        assert sizes == sorted(sizes) and sizes[-1] == len(whole.token_ids)
        parts = [one for output in deltas for one in output.outputs if one.index == index]
        assert "".join(part.text for part in parts) == whole.text
        assert [token for part in parts for token in part.token_ids] == list(whole.token_ids)
        assert [at for part in parts for at in part.logprobs or ()] == whole.logprobs
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [whole.finish_reason]
        assert parts[-1].cumulative_logprob == whole.cumulative_logprob
    assert [at for output in deltas for at in output.prompt_logprobs or ()] == final[0].prompt_logprobs


def of_kind(kind: object, max_tokens: int, stop: str) -> SamplingParams:
    return SamplingParams(
        n=2, seed=3, max_tokens=max_tokens, stop=stop, logprobs=1, prompt_logprobs=0, ignore_eos=True,
        output_kind=kind,  # type: ignore[arg-type]
    )  # fmt: skip


def test_output_kinds(shared: Shared) -> None:
    async def on(engine: AsyncLLM) -> None:
        kinds = [RequestOutputKind.CUMULATIVE, "delta", "final_only"]
        # More outputs than a reader takes at once, so there are several results, however slow the reader is.
        params = [of_kind(kind, MAX_TAKEN, "never written") for kind in kinds]
        results = [[output async for output in engine.generate(PROMPT, one)] for one in params]
        check_kinds(*results)

    shared(on)


def test_output_kinds_of_llm(llm: LLM) -> None:
    results = [list(llm.stream(PROMPT, of_kind(kind, 40, "."))) for kind in RequestOutputKind]
    check_kinds(*results)
    for kind in RequestOutputKind:  # generate has no use for parts
        (whole,) = llm.generate(PROMPT, of_kind(kind, 40, "."), use_tqdm=False)
        assert exact(whole) == exact(results[-1][0])
    with pytest.raises(InvalidParams, match="output_kind"):
        of_kind("half", 40, ".")


def test_closing_a_generator_aborts_the_request(shared: Shared) -> None:
    async def broken_off(engine: AsyncLLM) -> None:
        async for _ in engine.generate(PROMPT, ENDLESS, "r"):
            break

    async def closed(engine: AsyncLLM) -> None:
        async with aclosing(engine.generate(PROMPT, ENDLESS, "r")) as outputs:
            await anext(outputs)
            assert (await engine.stats()).running == 1

    async def closed_chat(engine: AsyncLLM) -> None:
        async with aclosing(engine.chat(CHAT, ENDLESS, "r")) as outputs:
            await anext(outputs)

    async def dropped(engine: AsyncLLM) -> None:
        outputs = engine.generate(PROMPT, ENDLESS, "r")
        await anext(outputs)
        del outputs
        gc.collect()

    async def cancelled(engine: AsyncLLM) -> None:
        task = asyncio.ensure_future(last(engine.generate(PROMPT, ENDLESS, "r")))
        while not (await engine.stats()).running:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def on(engine: AsyncLLM) -> None:
        for leave in (broken_off, closed, closed_chat, dropped, cancelled):
            before = (await engine.stats()).scheduler.output_tokens
            await leave(engine)
            await idle(engine)
            made = (await engine.stats()).scheduler.output_tokens - before
            assert 0 < made < 100_000, leave.__name__
            assert len((await last(engine.generate(PROMPT, GREEDY, "r"))).outputs[0].token_ids) == 12

    shared(on)


@run_async
async def test_cancelling_an_embedding_aborts_it() -> None:
    async with tale(max_num_batched_tokens=16) as engine:
        task = asyncio.ensure_future(engine.embed([5] * 500, request_id="r"))
        while not (await engine.stats()).running:
            assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        await idle(engine)
        assert (await engine.stats()).scheduler.scheduled_tokens < 500
        assert len((await engine.embed(PROMPT, request_id="r")).outputs.embedding) == engine.facts.hidden_size


def test_abort_ends_the_generator_with_the_output_so_far(shared: Shared) -> None:
    async def on(engine: AsyncLLM) -> None:
        seen = []
        async for output in engine.generate(PROMPT, ENDLESS, "r"):
            seen.append(output)
            if len(seen) == 3:
                await engine.abort(["r", "unknown"])
        assert seen[-1].finished and seen[-1].outputs[0].finish_reason == "abort"
        assert 0 < len(seen[-1].outputs[0].token_ids) < 100_000
        await idle(engine)

    shared(on)


def test_abort_before_the_engine_has_accepted(shared: Shared) -> None:
    params = replace(
        ENDLESS, grammar=Grammar("regex", "[a-z]{100,200}")
    )  # compiled before the request is accepted

    async def on(engine: AsyncLLM) -> None:
        starting = asyncio.ensure_future(last(engine.generate(PROMPT, params, "r")))
        await asyncio.sleep(0.1)
        await engine.abort("r")
        output = await asyncio.wait_for(starting, 30)
        assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("abort", ())
        await idle(engine)
        assert (await last(engine.generate(PROMPT, params, "r"))).outputs[0].text.isalpha()

    shared(on)


def test_abort_finds_requests_that_are_still_prepared(shared: Shared) -> None:
    long = "Once upon a time there was a fox. " * 100  # tokenized in a thread

    async def on(engine: AsyncLLM) -> None:
        for outputs in (engine.generate(long, GREEDY, "r"), engine.chat(CHAT, GREEDY, "r")):
            starting = asyncio.ensure_future(last(outputs))
            await asyncio.sleep(0)
            await engine.abort("r")
            output = await starting
            assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("abort", ())
        embedding = asyncio.ensure_future(engine.embed(long, request_id="r"))
        await asyncio.sleep(0)
        await engine.abort("r")
        with pytest.raises(HeadraceError, match="aborted"):
            await embedding
        assert len((await last(engine.generate(PROMPT, GREEDY, "r"))).outputs[0].token_ids) == 12

    shared(on)


def test_errors_have_their_types_and_affect_no_other_request(shared: Shared) -> None:
    async def on(engine: AsyncLLM) -> None:
        running = asyncio.ensure_future(last(engine.generate(PROMPT, GREEDY)))
        with pytest.raises(PromptTooLong):
            await last(engine.generate([5] * 300_000, GREEDY))
        with pytest.raises(InvalidParams, match="no field 'extra'"):
            await last(engine.generate({"prompt": "x", "extra": 1}, GREEDY))
        with pytest.raises(InvalidParams, match="must be SamplingParams"):
            await last(engine.generate(PROMPT, {"max_tokens": 5}))  # type: ignore[arg-type]
        with pytest.raises(InvalidParams, match="pooling"):
            await engine.embed(PROMPT, pooling="sum")
        with pytest.raises(InvalidParams, match="dimensions"):
            await engine.embed(PROMPT, dimensions=10**6)
        async with aclosing(engine.generate(PROMPT, ENDLESS, "twice")) as outputs:
            await anext(outputs)
            with pytest.raises(InvalidParams, match="already running"):
                await last(engine.generate(PROMPT, GREEDY, "twice"))
            assert not (await anext(outputs)).finished
        assert len((await running).outputs[0].token_ids) == 12
        await idle(engine)

    shared(on)


@run_async
async def test_too_many_requests_are_refused() -> None:
    config = EngineConfig.from_kwargs(model="tale", **OPTIONS | STREAMING)
    async with (
        AsyncLLM.from_config(config, ProcessOptions(max_in_flight=2)) as engine,
        aclosing(engine.generate(PROMPT, replace(ENDLESS, n=2))) as outputs,
    ):
        await anext(outputs)
        with pytest.raises(Overloaded):
            await last(engine.generate(PROMPT, GREEDY))


NO_PROMPTS: list[object] = [
    [1.0], [True], ["a"], ["a", "b"], [None], [[1]], np.array([1.0, 2.0]), np.array([[1, 2], [3, 4]]), np.array(5),
    {"prompt_token_ids": [1, 2.0]}, {"prompt_token_ids": [1, True]}, None, 5, 1.5, {}, b"a", {1, 2},
]  # fmt: skip


def test_a_prompt_that_is_none_is_refused_and_the_process_goes_on(shared: Shared) -> None:
    async def on(engine: AsyncLLM) -> None:
        before = children()
        for prompt in NO_PROMPTS:
            with pytest.raises(InvalidParams, match="prompt"):
                await last(engine.generate(prompt, GREEDY))  # type: ignore[arg-type]
            with pytest.raises(InvalidParams, match="prompt"):
                await engine.embed(prompt)  # type: ignore[arg-type]
        for ids in ([5, 6], (5, 6), range(5, 7), np.array([5, 6]), [np.int64(5), 6]):
            assert (await last(engine.generate(ids, GREEDY))).prompt_token_ids == tuple(ids)
        assert children() == before and engine.client.restarts == 0

    shared(on)


def test_llm_refuses_the_same_prompts(llm: LLM) -> None:
    for prompt in NO_PROMPTS:
        with pytest.raises(InvalidParams, match="prompt"):
            next(llm.stream(prompt, GREEDY))  # type: ignore[arg-type]
    for prompts in ([1.0], [True], [None], [["a"]], [[[1]]], np.array(5), np.array([[1.0]]), 10**5000):
        with pytest.raises(InvalidParams, match="prompt"):
            llm.generate(prompts, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("messages", [CHAT[0], None, 5, "Hello"])
def test_llm_refuses_what_is_no_list_of_messages(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidParams, match="messages must be a list of messages"):
        llm.chat(messages, GREEDY)


def test_wrong_options_of_embeddings_and_aborts_are_refused(shared: Shared, llm: LLM) -> None:
    async def on(engine: AsyncLLM) -> None:
        for name, value in (
            ("dimensions", 1.5), ("dimensions", "x"), ("dimensions", True), ("dimensions", 10**5000),
            ("normalize", "no"), ("normalize", 1), ("normalize", None), ("pooling", 5),
        ):  # fmt: skip
            options: Any = {name: value}
            with pytest.raises(InvalidParams, match=f"{name} must be"):
                await engine.embed(PROMPT, **options)
            with pytest.raises(InvalidParams, match=f"{name} must be"):
                llm.embed(PROMPT, use_tqdm=False, **options)
        numbered: Any = np.int64(8)
        assert len((await engine.embed(PROMPT, dimensions=numbered)).outputs.embedding) == 8
        async with aclosing(engine.generate(PROMPT, GREEDY, "r")) as outputs:
            results = [await anext(outputs)]  # on a busy machine it may hold all tokens
            ids: Any
            for ids in (None, 5, b"r", [5], ["r", None]):
                with pytest.raises(InvalidParams, match="request_id must be text"):
                    await engine.abort(ids)
            results += [output async for output in outputs]
            assert results[-1].outputs[0].finish_reason == "length"
        for ids in ([], (), {"nobody's"}, "nobody's"):
            await engine.abort(ids)

    shared(on)


def test_an_id_may_be_used_again_after_an_abort_or_a_cancellation(shared: Shared) -> None:
    async def aborted(engine: AsyncLLM) -> None:
        task = asyncio.ensure_future(last(engine.generate(PROMPT, ENDLESS, "r")))
        while not (await engine.stats()).running:
            await asyncio.sleep(0)
        await engine.abort("r")
        assert (await task).outputs[0].finish_reason == "abort"

    async def cancelled(engine: AsyncLLM) -> None:
        task = asyncio.ensure_future(last(engine.generate(PROMPT, ENDLESS, "r")))
        while not (await engine.stats()).running:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def on(engine: AsyncLLM) -> None:
        expected = exact(await last(engine.generate(PROMPT, GREEDY)))
        for leave in (aborted, cancelled) * 5:
            await leave(engine)
            assert exact(await last(engine.generate(PROMPT, GREEDY, "r"))) == expected, leave.__name__
        await idle(engine)

    shared(on)


DROPPED = """
import asyncio, gc, os, select, sys, warnings
from pathlib import Path
from headrace import AsyncLLM

warnings.simplefilter("always", ResourceWarning)

def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

async def use():
    engine = AsyncLLM("tale", num_threads=1, num_kv_blocks=40, max_model_len=512)
    async for _ in engine.generate("Once"):
        break
    (pid,) = map(int, children())
    return engine, os.pidfd_open(pid)

def ended(process):
    return bool(select.select([process], [], [], 60)[0])

async def in_the_loop():
    engine, process = await use()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert tasks
    del engine
    gc.collect()
    assert await asyncio.to_thread(ended, process)
    while children() or asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.sleep(0.01)

async def in_another_thread():
    engine, process = await use()
    holder = [engine]
    del engine
    await asyncio.to_thread(holder.clear)
    assert await asyncio.to_thread(ended, process)

def with_the_last_task():
    async def dropped_at_the_end():
        _, process = await use()
        return process

    assert ended(asyncio.run(dropped_at_the_end()))

def after_the_loop():
    engine, process = asyncio.run(use())
    assert not select.select([process], [], [], 0)[0]
    del engine
    gc.collect()
    assert ended(process)

for drop in (in_the_loop, in_another_thread, with_the_last_task, after_the_loop):
    if asyncio.iscoroutinefunction(drop):
        asyncio.run(drop())
    else:
        drop()
    gc.collect()
    print("ended", flush=True)
    print("----", file=sys.stderr, flush=True)
"""


@pytest.mark.long
def test_an_engine_that_is_dropped_without_close_ends_its_process() -> None:
    """Inside the event loop, in another thread, with the loop's last task, and after the loop."""
    outcome = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=120)
    assert outcome.stdout == "ended\n" * 4, outcome.stderr
    *parts, rest = outcome.stderr.split("----\n")
    assert len(parts) == 4 and rest == ""
    for part in parts:
        assert "ResourceWarning: AsyncLLM('tale') was dropped without close()" in part
        assert "Traceback" not in part and "the engine is dead" not in part


def test_wrong_options_are_refused_by_the_constructor() -> None:
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        AsyncLLM("tale", max_num_seq=4)


@run_async
async def test_a_model_without_a_tokenizer() -> None:
    async with AsyncLLM("shape:tiny", num_threads=1, num_kv_blocks=8, max_model_len=64) as engine:
        with pytest.raises(TokenizerError):
            await last(engine.generate(PROMPT, GREEDY))
        with pytest.raises(TokenizerError):
            _ = engine.tokenizer
        assert len((await last(engine.generate([1, 2, 3], GREEDY))).outputs[0].token_ids) == 12


@run_async
async def test_the_first_request_starts_the_engine_once() -> None:
    before = children()
    engine = AsyncLLM("tale", **OPTIONS)
    assert engine.state is EngineState.STARTING and children() == before
    await engine.abort("unknown")
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = engine.facts
    first, *others = (asyncio.ensure_future(last(engine.generate(PROMPT, GREEDY))) for _ in range(3))
    while len(children()) == len(before):
        await asyncio.sleep(0)
    first.cancel()  # the start continues for the others
    outputs = await asyncio.gather(*others)
    assert exact(outputs[0]) == exact(outputs[1])
    assert len(children()) == len(before) + 1
    await engine.close()
    await engine.close()
    assert children() == before
    with pytest.raises(EngineDead, match="closed"):
        await last(engine.generate(PROMPT, GREEDY))


@run_async
async def test_closing_ends_a_start_and_running_requests() -> None:
    before = children()
    engine = AsyncLLM("tale", **OPTIONS)
    starting = asyncio.ensure_future(last(engine.generate(PROMPT, GREEDY)))
    while len(children()) == len(before):
        await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineDead, match="closed while it started"):
        await starting
    assert children() == before

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), AsyncLLM("tale", **OPTIONS):
            raise AssertionError("the model was loaded in no time")
    assert children() == before

    async with tale(**STREAMING) as engine:
        outputs = engine.generate(PROMPT, ENDLESS)
        await anext(outputs)
        await engine.close()
        with pytest.raises(EngineDead):
            await last(outputs)


@run_async
async def test_a_start_that_failed_can_be_repeated() -> None:
    engine = AsyncLLM("/nowhere/at/all", **OPTIONS)
    for _ in range(2):
        with pytest.raises(ModelNotFound):
            await engine.start()
    await engine.close()


@run_async
async def test_an_engine_that_dies_is_started_again() -> None:
    async with tale(**STREAMING) as engine:
        streams = [engine.generate(PROMPT, ENDLESS) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        pid = engine.client.pid
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDead, match="SIGKILL"):
                await last(stream)
        with pytest.raises(EngineDead) as refused:
            await last(engine.generate(PROMPT, GREEDY))
        assert refused.value.retry_after_s is not None and refused.value.retry_after_s >= 1
        while engine.state is not EngineState.READY:
            await asyncio.sleep(0.05)
        assert len((await last(engine.generate(PROMPT, GREEDY))).outputs[0].token_ids) == 12


def test_another_event_loop_is_refused_and_may_have_an_engine_of_its_own() -> None:
    before = children()
    engine = AsyncLLM("tale", **OPTIONS)

    async def use(one: AsyncLLM) -> RequestOutput:
        return await last(one.generate(PROMPT, GREEDY))

    async def one_loop_and_another() -> None:
        async with engine:
            expected = await use(engine)

            async def elsewhere() -> RequestOutput:
                for call in (use(engine), engine.stats(), engine.abort("r"), engine.embed(PROMPT)):
                    with pytest.raises(RuntimeError, match="another event loop"):
                        await call
                async with AsyncLLM("tale", **OPTIONS) as other:
                    return await use(other)

            found = await asyncio.to_thread(asyncio.run, elsewhere())
            assert exact(found) == exact(expected) == exact(await use(engine))

    asyncio.run(asyncio.wait_for(one_loop_and_another(), 120))
    assert children() == before
    with pytest.raises((EngineDead, RuntimeError)):
        asyncio.run(use(engine))


def test_without_msgspec_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['msgspec'] = None\nimport headrace\nheadrace.LLM\nheadrace.AsyncLLM"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert outcome.stderr.splitlines()[-1].endswith(
        f"MissingDependency: AsyncLLM needs the package msgspec: {install_command('server')}"
    )


@run_async
async def test_metrics_are_those_of_the_server_and_survive_a_restart() -> None:
    async with tale() as engine:
        for _ in range(2):
            await last(engine.generate(PROMPT * 4, GREEDY))
        first = {sample.name: sample for sample in await engine.get_metrics()}
        assert first["headrace:generation_tokens_total"].value == 2 * GREEDY.max_tokens
        assert first["headrace:prefix_cache_hits_total"].value > 0
        steps = first["headrace:iteration_tokens_total"]
        assert steps.kind == "histogram" and steps.buckets[-1][1] == (await engine.stats()).scheduler.steps
        assert first["headrace:num_requests_running"].value == 0
        exposed = {metric.exposed for metric in METRICS}
        assert set(first) <= exposed
        pid = engine.client.pid
        os.kill(pid, signal.SIGKILL)
        while engine.client.restarts == 0 or engine.state is not EngineState.READY:
            await asyncio.sleep(0.05)
        again = {sample.name: sample.value for sample in await engine.get_metrics()}
        assert again["headrace:generation_tokens_total"] == 2 * GREEDY.max_tokens
