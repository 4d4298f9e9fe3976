"""Clients disconnect in any phase: every block is freed, and no other client is affected."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from headrace.core.snapshot import Phase
from headrace.serving.client.process import ProcessClient
from tests.server.conftest import TinyServer
from tests.server.raw_http import connect, post, works
from tests.serving.faulty_engine import command
from tests.serving.tiny_engine import COMMAND
from tests.waiting import LONG_S, until

POOL = {"num_blocks": 48, "block_size": 8, "max_num_batched_tokens": 16, "step_s": 0.003}
TOKENS = itertools.cycle(range(1, 2000))  # every prompt its own: the prefix cache would save the prefill
CROWDS: dict[Phase, tuple[int, int, int, int]] = {
    Phase.QUEUED: (26, 3, 200, 8),
    Phase.PREFILL: (3, 120, 100, 1),
    Phase.DECODE: (8, 3, 200, 4),
    Phase.PREEMPTED: (12, 20, 200, 4),
}
"""(callers, prompt tokens, output tokens, how many of them must be in that phase when all of them leave)"""


@contextlib.contextmanager
def server(fault: str | None = None, **config: object) -> Iterator[TinyServer]:
    running = TinyServer(command=COMMAND if fault is None else command(fault), **POOL | config)
    try:
        yield running
    finally:
        running.close()


def phases(tiny: TinyServer) -> Counter[Phase]:
    """How many sequences are in each phase now."""
    client = tiny.client
    assert isinstance(client, ProcessClient)
    return Counter(lane.phase for lane in tiny.call(client.view()).snapshot.lanes)


def leave(tiny: TinyServer, phase: Phase) -> Counter[Phase]:
    """A crowd that leaves in the middle; returns in which phases they were. Their blocks must be free in time."""
    count, prompt, output, enough = CROWDS[phase]
    seen: Counter[Phase] = Counter()
    before = tiny.stats().scheduler.output_tokens

    def together() -> bool:
        nonlocal seen
        seen = phases(tiny)
        # Where all have ended before the first check, send more requests.
        return seen[phase] >= enough or (
            tiny.idle and tiny.stats().scheduler.output_tokens - before >= count * output
        )

    with contextlib.ExitStack() as stack:
        for _ in range(count):
            caller = stack.enter_context(connect(tiny.url))
            body = {"prompt": [next(TOKENS)] * prompt, "max_tokens": output, "stream": True}
            caller.sendall(post(body))
        until(together)
    until(lambda: (stats := tiny.stats()).running + stats.waiting == 0)
    assert tiny.idle  # all blocks are free, too
    return seen


@pytest.mark.parametrize("wanted", [12, pytest.param(50, marks=pytest.mark.long)])
def test_many_disconnects(wanted: int) -> None:
    """`wanted` departures in each phase."""
    with server() as tiny:
        left: Counter[Phase] = Counter()
        rounds: Counter[Phase] = Counter()
        for phase in Phase:
            while left[phase] < wanted:
                left += leave(tiny, phase)
                rounds[phase] += 1
                assert rounds[phase] <= 2 * wanted
        assert left.total() >= 4 * wanted and set(left) == set(Phase)
        assert tiny.stats().scheduler.preemptions > 0
        works(tiny)
        until(lambda: not tiny.connections or len(tiny.connections) == 1)


def test_one_disconnect_leaves_the_others_running() -> None:
    with server() as tiny:
        alone = tiny.openai.completions.create(model="tiny", prompt=[1], max_tokens=240).choices[0].text
        staying = connect(tiny.url)
        # Long enough for all that leave, on a busy machine too.
        staying.sendall(post({"prompt": [1], "max_tokens": 240, "stream": True}))
        for _ in range(5):
            with connect(tiny.url) as leaving:
                leaving.sendall(post({"prompt": [next(TOKENS)] * 60, "max_tokens": 100, "stream": True}))
                until(lambda: tiny.stats().running + tiny.stats().waiting >= 2)
        data = b""
        while b"[DONE]" not in data:
            data += staying.recv(65_536)
        staying.close()
        events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: {")]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == alone
        until(lambda: tiny.idle)


def test_freed_within_a_step() -> None:
    """With steps of a third of a second, the blocks are free before the second step after the disconnect ends."""
    with server(step_s=0.3) as tiny, connect(tiny.url) as caller:
        caller.sendall(post({"prompt": [1, 2, 3], "max_tokens": 100, "stream": True}))
        until(lambda: phases(tiny)[Phase.DECODE] == 1)
        steps = tiny.stats().scheduler.steps
        caller.close()
        until(lambda: tiny.idle)
        assert tiny.stats().scheduler.steps - steps <= 2


# ---- The tests above, proven ----


def fails(check: Callable[[], object]) -> bool:
    """The check complains."""
    try:
        check()
    except AssertionError:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
def test_a_leaked_block_is_noticed(phase: Phase) -> None:
    with server("leak") as tiny:
        assert fails(lambda: leave(tiny, phase))
        stats = tiny.stats()
        assert stats.running == stats.waiting == 0 and stats.free_blocks < stats.total_blocks


def ends(tiny: TinyServer, patience_s: float = LONG_S) -> None:
    """A stream that is read to its end has one."""
    with connect(tiny.url) as caller:
        caller.settimeout(patience_s)
        caller.sendall(post({"prompt": [1], "max_tokens": 5, "stream": True}))
        try:
            data = b""
            while b"[DONE]" not in data:
                piece = caller.recv(65_536)
                assert piece, "the connection ended before the stream"
                data += piece
        except TimeoutError as error:
            raise AssertionError("the stream was never ended") from error


def test_a_stream_that_never_ends_is_noticed() -> None:
    with server() as tiny:
        ends(tiny)
    with server("mute") as tiny:
        assert fails(lambda: ends(tiny, 2))
