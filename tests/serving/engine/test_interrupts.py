"""Signal handlers that are held back in a block, and run at its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from random import Random
from types import FrameType

import pytest

from headrace.serving.engine.turn import Interrupts, Turn
from tests.random_lines import RandomLines


class First(Exception):
    pass


class Second(Exception):
    pass


def raise_first(number: int, frame: FrameType | None) -> None:
    raise First


def raise_second(number: int, frame: FrameType | None) -> None:
    raise Second


@pytest.fixture
def handlers() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    signal.signal(signal.SIGUSR1, raise_first)
    signal.signal(signal.SIGUSR2, raise_second)
    yield
    for number, handler in before:
        signal.signal(number, handler)


def installed() -> bool:
    return (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == (raise_first, raise_second)


@pytest.mark.usefixtures("handlers")
def test_a_handler_runs_at_the_end_of_the_block() -> None:
    interrupts, passed = Interrupts(), False
    with pytest.raises(First), interrupts:
        signal.raise_signal(signal.SIGUSR1)
        passed = True
    assert passed and installed()
    with interrupts:  # and not again
        pass


@pytest.mark.usefixtures("handlers")
def test_two_signals_run_both_handlers() -> None:
    with pytest.raises((First, Second)) as caught, Interrupts():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
    assert {type(caught.value), type(caught.value.__context__)} == {First, Second}
    assert installed()


@pytest.mark.usefixtures("handlers")
def test_a_signal_at_any_line_of_the_block_itself() -> None:
    """It raises once, at once or later, and the next block works and leaves the handlers as they were."""
    turn, at, inside = Turn(), 0, 0
    while True:
        lines = RandomLines(lambda: signal.raise_signal(signal.SIGUSR2), "/serving/")
        lines.at = at
        try:
            with lines.watch(), turn:
                pass
            assert not lines.where
            break  # after the last line
        except Second:
            inside += 1
        assert lines.where
        signals = 0
        for kind, number in ((First, signal.SIGUSR1), (Second, signal.SIGUSR2)):
            with pytest.raises(kind):
                signal.raise_signal(number)
            with pytest.raises(kind), turn:
                signal.raise_signal(number)
                signals += 1
        assert signals == 2 and installed()
        at += 1
    assert inside > 20


def test_other_threads_do_not_delay_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=hold_for_a_while)
    with Interrupts():
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def hold_for_a_while() -> None:
    with Interrupts():
        pass


def test_turns_are_in_order() -> None:
    turn, order, rng = Turn(), list[int](), Random(0)
    waiting = [threading.Event() for _ in range(5)]

    def take(at: int) -> None:
        waiting[at].set()
        for _ in range(20):
            with turn:
                order.append(at)

    with turn:
        threads = [threading.Thread(target=take, args=(at,)) for at in range(5)]
        rng.shuffle(threads)
        for thread in threads:
            thread.start()
        for event in waiting:
            event.wait()
        while len(turn._queue) < 5:
            pass
    for thread in threads:
        thread.join(30)
    rounds = [order[at : at + 5] for at in range(0, 100, 5)]
    assert all(len(set(round)) == 5 for round in rounds), rounds
