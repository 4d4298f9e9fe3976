"""Repeats: one run warms up, and an interrupt keeps the completed ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.bench.repeats import Repeats


def counting(interrupted_at: int | None = None) -> Callable[[], int]:
    runs = iter(range(100))

    def run() -> int:
        number = next(runs)
        if number == interrupted_at:
            raise KeyboardInterrupt
        return number

    return run


def test_the_first_run_does_not_count() -> None:
    calls: list[str] = []
    found = Repeats(counting(), 3, lambda: calls.append("next"))
    assert found.runs == [1, 2, 3] and len(calls) == 4
    found.reraise()


def test_an_interrupt_waits_until_results_are_used() -> None:
    found = Repeats(counting(interrupted_at=3), 5, lambda: None)
    assert found.runs == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        found.reraise()


@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupt_without_results_is_raised_at_once(at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        Repeats(counting(interrupted_at=at), 5, lambda: None)
