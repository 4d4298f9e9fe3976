"""Tokens of short steps are sent as one update: in order, none late, and never a first or a last one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from headrace.core.types import FinishReason, Output, RequestStats, TokenLogprobs
from headrace.serving.engine import outbox
from headrace.serving.engine.outbox import MAX_ENTRIES_PER_MESSAGE, Outbox, in_messages, merged
from headrace.serving.requests.completion import entries
from headrace.serving.wire.connection import Connection, FrameBuffer
from headrace.serving.wire.messages import Outputs, Pong, decode_from_engine

INTERVAL_S = 0.008


class Engine:
    """An outbox, with a clock that stands still until it is moved, and its other end."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        here, self.there = socket.socketpair()
        self.there.setblocking(False)
        self.now = 1000.0
        self.outbox = Outbox(Connection(here), lambda: self.now, interval_s)
        self._here = here
        self._frames = FrameBuffer()

    def step(self, duration_s: float, *outputs: Output) -> list[tuple[str, tuple[int, ...]]]:
        """A step that ends with these; what the other end hears of it."""
        self.now += duration_s
        self.outbox.add(list(outputs))
        return self.heard()

    def heard(self) -> list[tuple[str, tuple[int, ...]]]:
        """(request, tokens) of all that has come; other messages by their name."""
        try:
            data = self.there.recv(1 << 20)
        except BlockingIOError:
            return []
        found: list[tuple[str, tuple[int, ...]]] = []
        for payload in self._frames.feed(data):
            message = decode_from_engine(payload)
            if isinstance(message, Outputs):
                found += [(update.request_id, update.tokens) for update in message.outputs]
            else:
                found.append((type(message).__name__, ()))
        return found

    def close(self) -> None:
        self._here.close()
        self.there.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def token(number: int, name: str = "r") -> Output:
    return Output(name, 0, (number,))


def last(number: int, name: str = "r") -> Output:
    return Output(name, 0, (number,), finish_reason=FinishReason.LENGTH)


def test_a_first_token_goes_at_once(engine: Engine) -> None:
    assert engine.step(0.001, token(1)) == [("r", (1,))]
    assert engine.step(0.001, token(2)) == []


def test_tokens_of_short_steps_go_together_and_none_waits_for_long(engine: Engine) -> None:
    engine.step(0.002, token(0))
    times = [engine.now]
    received = []
    for number in range(1, 101):
        heard = engine.step(0.002, token(number))
        received += heard
        if heard:
            times.append(engine.now)
    assert received == [("r", tuple(range(first, first + 4))) for first in range(1, 101, 4)], (
        "one update each"
    )
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) == 25 and max(gaps) == pytest.approx(INTERVAL_S)


@pytest.mark.parametrize("step_s", [INTERVAL_S / 1.9, INTERVAL_S, 0.1])
def test_longer_steps_are_reported_one_by_one(engine: Engine, step_s: float) -> None:
    for number in range(10):
        assert engine.step(step_s, token(number)) == [("r", (number,))]


def test_a_last_token_flushes_the_others(engine: Engine) -> None:
    engine.step(0.001, token(1), token(1, "s"))
    assert engine.step(0.001, token(2), token(2, "s")) == []
    assert engine.step(0.001, last(3), token(3, "s")) == [
        ("r", (2, 3)), ("s", (2, 3)),
    ]  # fmt: skip


def test_a_message_is_sent_after_held_outputs(engine: Engine) -> None:
    engine.step(0.001, token(1))
    engine.step(0.001, token(2))
    engine.outbox.send(Pong())
    assert engine.heard() == [("r", (2,)), ("Pong", ())]
    engine.outbox.flush()
    assert engine.heard() == []


def test_a_reused_name_starts_again(engine: Engine) -> None:
    engine.step(0.001, token(1))
    engine.step(0.001, last(2))
    assert engine.step(0.001, token(3)) == [("r", (3,))]
    assert engine.step(0.001, token(4)) == []
    engine.outbox.forget("r")
    assert engine.step(0.001, token(5)) == [("r", (4, 5))]


def test_nothing_is_held_without_an_interval() -> None:
    engine = Engine(0.0)
    for number in range(5):
        assert engine.step(0.0001, token(number)) == [("r", (number,))]
    engine.close()


def test_a_step_after_a_pause_is_reported_at_once(engine: Engine) -> None:
    """How long the next one takes is not known."""
    engine.step(0.001, token(1))
    assert engine.step(5.0, token(2)) == [("r", (2,))]


def test_a_merged_update_equals_its_parts() -> None:
    stats = RequestStats(1.0)

    def scored(number: int, **more: Any) -> Output:
        entry = TokenLogprobs(number, -0.5, 1, ((number, -0.5, 1),))
        return Output("r", 1, (number,), (entry,), **more)

    parts = [
        Output("r", 0, (7,)),
        scored(1, stats=stats),
        Output("r", 0, (8,)),
        scored(2),
        Output("r", 0),
        scored(3, finish_reason=FinishReason.STOP, stop_token=3, error="x"),
    ]
    zero, one = merged(parts)
    assert zero == Output("r", 0, (7, 8))
    assert (one.tokens, [entry.token for entry in one.logprobs]) == ((1, 2, 3), [1, 2, 3])
    assert (one.finish_reason, one.stop_token, one.error, one.stats) == (FinishReason.STOP, 3, "x", stats)
    assert merged([zero]) == [zero] and merged([]) == []


def test_a_merged_update_is_no_larger_than_a_message() -> None:
    top = tuple((number, -0.5, 1) for number in range(20))
    parts = [Output("r", 0, (number,), (TokenLogprobs(number, -0.5, 1, top),)) for number in range(200)]
    found = merged(parts)
    assert [token for one in found for token in one.tokens] == list(range(200))
    assert [entry.token for one in found for entry in one.logprobs] == list(range(200))
    assert len(found) == 9 and max(map(entries, found)) <= MAX_ENTRIES_PER_MESSAGE


def test_many_outputs_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_ENTRIES_PER_MESSAGE", 10)
    outputs = [Output(f"r{i}", 0, tokens=(1, 2, 3)) for i in range(9)]
    parts = list(in_messages(outputs))
    assert [len(part.outputs) for part in parts] == [2, 2, 2, 2, 1]  # an output counts for four entries more
    assert [output for part in parts for output in part.outputs] == outputs
    assert list(in_messages([])) == []
