"""The offline API under interruptions: the garbage collector, signals, other threads, a fork."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType

import pytest
import torch

from headrace import LLM, Grammar, SamplingParams
from headrace.core.types import StepPlan, StepResult
from headrace.errors import EngineDead, PromptTooLong
from tests import needs
from tests.random_lines import RandomLines

SHORT = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
PROMPTS = [[1 + at, 2, 3, 4, 5, 6, 7, 8, 9] for at in range(4)]
ROUNDS = 60


def tiny() -> LLM:
    return LLM(
        "shape:tiny", num_threads=1, show_progress=False, num_kv_blocks=64, block_size=8, max_model_len=128,
        max_num_seqs=8,
    )  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> LLM:
    return tiny()


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[tuple[int, ...]]:
    return generate(llm)


def generate(llm: LLM, params: SamplingParams = SHORT) -> list[tuple[int, ...]]:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def assert_idle(llm: LLM) -> None:
    stats = llm.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.total_blocks)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector runs only when it is called, and only on objects created from now on."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def abandon_streams(llm: LLM) -> None:
    """Streams in the middle of their output that only the garbage collector can close."""
    for at in range(4):
        stream = llm.stream([50 + at, 2, 3], LONG)
        next(stream)
        circle: list[object] = [stream]
        circle.append(circle)


@pytest.mark.usefixtures("no_collector")
def test_the_collector_closes_abandoned_streams_at_random_lines(
    llm: LLM, expected: list[tuple[int, ...]]
) -> None:
    rng = Random(22)
    lines = RandomLines(gc.collect)
    abandon_streams(llm)
    with lines.watch():
        generate(llm)
    total = lines.lines
    gc.collect()
    for number in range(ROUNDS):
        abandon_streams(llm)
        assert llm.stats().running == 4
        lines.draw(rng, total)
        with lines.watch():
            assert generate(llm) == expected, f"round {number}, in {lines.where[-1:]}"
        gc.collect()
        assert_idle(llm)
    inside = Counter(
        name for where in lines.where for name in {"begin", "execute", "finish"} & set(where.split())
    )
    assert min(inside.values()) > 2 and len(inside) == 3


def test_an_explicitly_closed_stream_is_aborted(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], LONG)
    next(stream)
    assert llm.stats().running == 1
    stream.close()
    assert_idle(llm)


def test_ctrl_c_at_random_lines(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    rng = Random(12)
    lines = RandomLines(lambda: signal.raise_signal(signal.SIGINT))
    with lines.watch():
        generate(llm)
    total = lines.lines
    interrupted = 0
    for number in range(ROUNDS):
        stream = llm.stream(PROMPTS[0], LONG)
        next(stream)
        lines.draw(rng, total)
        try:
            with lines.watch():
                generate(llm)
        except KeyboardInterrupt:
            interrupted += 1
        assert llm.stats().running == 1, f"round {number}, in {lines.where[-1:]}"
        assert generate(llm) == expected
        *_, last = stream  # other requests are not affected
        assert last.outputs[0].token_ids[:6] == expected[0] and last.finished
        assert_idle(llm)
    assert interrupted == len(lines.where) == ROUNDS
    inside = Counter(
        name for where in lines.where for name in {"begin", "execute", "finish"} & set(where.split())
    )
    assert min(inside.values()) > 2 and len(inside) == 3


def test_ctrl_c_at_random_lines_of_a_stream(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    rng = Random(13)
    lines = RandomLines(lambda: signal.raise_signal(signal.SIGINT))
    with lines.watch():
        list(llm.stream(PROMPTS[0], SHORT))
    total = lines.lines
    for _ in range(ROUNDS):
        lines.draw(rng, total)
        with pytest.raises(KeyboardInterrupt), lines.watch():
            for _ in llm.stream(PROMPTS[0], SHORT):
                pass
        assert_idle(llm)
        assert generate(llm) == expected
    assert len(lines.where) == ROUNDS


class TimeIsUp(Exception):
    pass


def test_signals_at_random_moments(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    """Ctrl-C from another thread and a time limit by SIGALRM: whatever a handler raises."""

    def raise_time_is_up(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    rng = Random(14)
    before = signal.signal(signal.SIGALRM, raise_time_is_up)
    main = threading.main_thread().ident
    assert main is not None
    raised = Counter[str]()
    try:
        for number in range(ROUNDS):
            delay_s = rng.uniform(0.0002, 0.01)
            timer = threading.Timer(delay_s, signal.pthread_kill, (main, signal.SIGINT))
            try:
                if number % 2:
                    signal.setitimer(signal.ITIMER_REAL, delay_s)
                else:
                    timer.start()
                while True:
                    generate(llm, LONG)
            except (KeyboardInterrupt, TimeIsUp) as error:
                raised[type(error).__name__] += 1
            if not number % 2:
                timer.join()
            assert_idle(llm)
            assert generate(llm) == expected
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGALRM, before)
    assert raised == {"KeyboardInterrupt": ROUNDS // 2, "TimeIsUp": ROUNDS // 2}


def test_threads_share_one_batch(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    alone = generate(llm, LONG)
    before = llm.stats().scheduler.steps
    found: dict[int, list[tuple[int, ...]]] = {}
    start = threading.Barrier(len(PROMPTS))

    def call(at: int) -> None:
        start.wait()
        found[at] = [
            llm.generate(PROMPTS[at], LONG, use_tqdm=False)[0].outputs[0].token_ids for _ in range(3)
        ]

    run_threads([threading.Thread(target=call, args=(at,)) for at in range(len(PROMPTS))])
    assert found == {at: [tokens] * 3 for at, tokens in enumerate(alone)}
    assert_idle(llm)
    # One after the other they would need 3 x 4 x 40 steps, in perfect step 3 x 40; how close it comes to that is for
    # the machine to say, which may run the threads one after the other for a while.
    assert llm.stats().scheduler.steps - before < 3 * 4 * 40


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_threads_with_everything_at_once(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    """Whole answers, streams, embeddings, bad requests and counts from eight threads."""
    vector = list(llm.embed(PROMPTS[0], use_tqdm=False)[0].outputs.embedding)
    wrong: list[str] = []

    def generates() -> None:
        if generate(llm) != expected:
            wrong.append("generate")

    def streams() -> None:
        *_, last = llm.stream(PROMPTS[1], SHORT)
        if last.outputs[0].token_ids != expected[1]:
            wrong.append("stream")

    def leaves() -> None:
        next(llm.stream(PROMPTS[2], LONG))

    def embeds() -> None:
        if list(llm.embed(PROMPTS[0], use_tqdm=False)[0].outputs.embedding) != vector:
            wrong.append("embed")

    def errs() -> None:
        with pytest.raises(PromptTooLong):
            llm.generate([[1] * 1000])
        if llm.stats().running > 8:
            wrong.append("stats")

    def loop(seed: int) -> None:
        rng = Random(seed)
        try:
            for _ in range(15):
                rng.choice((generates, streams, leaves, embeds, errs))()
        except BaseException as error:
            wrong.append(repr(error))

    run_threads([threading.Thread(target=loop, args=(seed,)) for seed in range(8)])
    assert wrong == []
    gc.collect()
    assert_idle(llm)


def test_a_short_call_does_not_wait_for_a_long_one(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    ended: list[str] = []
    begun = threading.Event()

    def long() -> None:
        stream = llm.stream(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=110, ignore_eos=True))
        next(stream)
        begun.set()
        while not ended and llm.stats().running + llm.stats().waiting < 2:
            time.sleep(0.001)  # until the other thread is there, however late it is scheduled
        list(stream)
        ended.append("long")

    def short() -> None:
        begun.wait()
        assert generate(llm) == expected
        ended.append("short")

    run_threads([threading.Thread(target=long), threading.Thread(target=short)])
    assert ended == ["short", "long"]


def test_ctrl_c_ends_the_main_threads_call_alone(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    found: list[list[tuple[int, ...]]] = []

    def other() -> None:
        for _ in range(20):
            found.append(generate(llm))
        signal.pthread_kill(main, signal.SIGINT)
        for _ in range(20):
            found.append(generate(llm))

    thread = threading.Thread(target=other)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        while True:
            generate(llm, LONG)
    thread.join(60)
    assert found == [expected] * 40
    assert_idle(llm)


def in_child(work: Callable[[], bool]) -> int:
    """The exit status of a forked child: 0 where `work` gave true there, -14 where it hung."""
    pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_continues(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    """Whether another thread waits for its turn, or an open stream is carried over."""
    stream = llm.stream(PROMPTS[1], SHORT)
    next(stream)

    def goes_on() -> bool:
        *_, last = stream
        return generate(llm) == expected and last.outputs[0].token_ids == expected[1]

    assert in_child(goes_on) == 0
    *_, last = stream  # and so does the parent
    assert last.outputs[0].token_ids == expected[1] and generate(llm) == expected


def test_grammars_in_a_forked_child() -> None:
    needs.package("llguidance")
    llm = LLM("tale", show_progress=False, num_threads=1)
    one, other = (SamplingParams(grammar=Grammar("choice", f'["{word}"]')) for word in ("red", "green"))

    def text(params: SamplingParams) -> str:
        return llm.generate("A colour:", params, use_tqdm=False)[0].outputs[0].text

    assert text(one) == "red"  # the thread that computes masks runs from here on
    assert in_child(lambda: text(one) == "red" and text(other) == "green") == 0
    assert text(other) == "green"


def test_a_fork_while_a_grammar_is_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.package("llguidance")
    from headrace.text.grammars import Compiled, GrammarCompiler

    llm = LLM("tale", show_progress=False, num_threads=1)
    compiling, go_on = threading.Event(), threading.Event()
    compile = GrammarCompiler.compile

    def slow(self: GrammarCompiler, grammar: Grammar) -> Compiled:
        if threading.current_thread() is not threading.main_thread():
            compiling.set()
            go_on.wait()
        return compile(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slow)
    params = SamplingParams(grammar=Grammar("choice", '["red"]'))
    thread = threading.Thread(target=llm.generate, args=("A colour:", params), kwargs={"use_tqdm": False})
    thread.start()
    compiling.wait()
    status = in_child(lambda: llm.generate("x", params, use_tqdm=False)[0].outputs[0].text == "red")
    go_on.set()
    thread.join(60)
    assert status == 0


def test_a_fork_in_the_middle_of_anothers_step_is_refused(
    expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny()
    running, go_on = threading.Event(), threading.Event()
    execute = llm.parts.executor.execute

    def wait(plan: StepPlan) -> StepResult:
        running.set()
        go_on.wait()
        return execute(plan)

    monkeypatch.setattr(llm.parts.executor, "execute", wait)
    found: list[list[tuple[int, ...]]] = []
    thread = threading.Thread(target=lambda: found.append(generate(llm)))
    thread.start()
    running.wait()

    def is_refused() -> bool:
        for _ in range(2):
            with pytest.raises(EngineDead, match="forked while another thread"):
                generate(llm)
        return generate(tiny()) == expected

    status = in_child(is_refused)
    go_on.set()
    thread.join(60)
    assert status == 0 and found == [expected]


@pytest.fixture
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
def test_torch_in_a_forked_child(threads: int) -> None:
    """With threads of its own it is refused: torch would wait for them for ever."""
    llm = LLM("tale", ops_force="torch", num_threads=threads, show_progress=False)
    expected = generate(llm)

    def goes_on() -> bool:
        return generate(llm) == expected

    def is_refused() -> bool:
        with pytest.raises(EngineDead, match="start processes with spawn"):
            generate(llm)
        return True

    assert in_child(goes_on if threads == 1 else is_refused) == 0
    assert generate(llm) == expected
