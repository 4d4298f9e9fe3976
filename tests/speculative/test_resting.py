"""Drafting that does not pay rests, and what it lost is paid back meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.runner.drafting import Drafted
from headrace.speculative.method import Proposal
from headrace.speculative.resting import FIRST_SHARE, LEAST_TRUST, LONGEST, SHARE, SHORTEST, TRUST, Rest
from tests.speculative.test_control import Machine, best, flat, steep


def test_a_rest_pays_back_what_was_lost() -> None:
    rest = Rest()
    while not rest.left:
        rest.add(-0.5)
    assert rest.left == round(TRUST / FIRST_SHARE)
    lengths = []
    for _ in range(4):
        rest.left, lost = 0, 0.0
        while not rest.left:
            rest.add(-0.5)
            lost += 0.5
        lengths.append(rest.left / lost)
    assert lengths == [round(2 / FIRST_SHARE), 1 / SHARE, 1 / SHARE, 1 / SHARE]
    rest.left = 0
    rest.add(-100.0)
    assert rest.left == LONGEST


def test_what_gained_first_rests_briefly() -> None:
    rest = Rest()
    for _ in range(100):
        rest.add(1.0)
    while not rest.left:
        rest.add(-1.0)
    assert rest.left == SHORTEST


class Slow(Machine):
    """A machine on which deciding takes time, as it does in Python."""

    def __init__(self, *args: Any, control_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        inner = self.speculation._remember

        def remember(*args: Any) -> None:
            self.now += control_s
            inner(*args)

        self.speculation._remember = remember  # type: ignore[method-assign]


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("free", [False, True])
def test_deciding_costs_little_where_nothing_is_drafted(batch: int, free: bool) -> None:
    machine = Slow(steep, [0.1] * batch, control_s=0.2, draft_s=0.3, free=free)
    machine.run(500)
    calls = machine.asked
    assert machine.run(1000) > 0.98 * batch / steep(batch)
    assert machine.asked - calls < 120


def test_deciding_may_cost_more_than_drafts_bring() -> None:
    machine = Slow(flat, [0.4], control_s=0.3, draft_s=0.01)
    assert best(flat, 0.4, 0.01, 8) > 1.4 / flat(1)  # the drafts alone would pay
    machine.run(500)
    assert machine.run(1000) > 0.98 / flat(1)


def test_a_resting_drafter_says_so_before_the_last_step() -> None:
    machine = Machine(steep, [0.0], draft_s=0.3)
    while not machine.speculation.resting:
        machine.run(1)
    asked = machine.asked
    while machine.speculation.resting:
        assert machine.asked == asked
        machine.run(1)
    machine.run(1)
    assert machine.asked > asked  # drafts had room in that step


def test_a_rest_is_as_long_where_batches_take_turns() -> None:
    machine = Machine(steep, [0.0], draft_s=0.3)
    while not machine.speculation.resting:
        machine.run(1)
    speculation, asked = machine.speculation, machine.asked
    left = speculation._rests[1].left + speculation._quiet
    other = speculation._rest(8)
    other.left = 2 * left
    for _ in range(left):  # steps of one sequence and of eight
        assert speculation.rests(1, decoding=True) and speculation.rests(8, decoding=True)
    assert other.left + speculation._quiet == left
    assert machine.asked == asked and not speculation.rests(1, decoding=True)


def test_a_rest_ends_beside_requests_that_are_not_drafted_for() -> None:
    machine = Machine(steep, [0.0] * 3, draft_s=0.3)
    while not machine.speculation.resting:
        machine.run(1)
    asked, left = machine.asked, machine.speculation._rest(3).left + machine.speculation._quiet
    machine.others = machine.embedded = 1
    machine.run(left)
    assert machine.asked == asked
    machine.run(2)
    assert machine.asked > asked


def test_steps_are_measured_while_drafting_rests() -> None:
    machine = Machine(steep, [0.0] * 4, draft_s=0.3)
    while not machine.speculation.resting:
        machine.run(1)
    machine.step_s = lambda tokens: 1.2 * steep(tokens)
    machine.speculation._rest(4).left = 4000
    machine.run(2000)
    known = machine.speculation.costs(4, 0.0)
    assert known is not None and known.plain_s == pytest.approx(1.2 * steep(4), rel=0.01)


def test_the_sequences_that_are_tried_change() -> None:
    machine = Machine(steep, [0.0] * 16, draft_s=0.3)
    tried: set[int] = set()
    for _ in range(2000):
        machine.run(1)
        if machine.speculation._probing:
            tried |= {at for at, draft in enumerate(machine.drafts) if draft}
    assert len(tried) > 3


class Reading(Machine):
    """A machine whose drafter has to read what was written while it rested."""

    def __init__(self, *args: Any, read_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.read_s = read_s
        self.read = [0] * len(self.rates)

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        for one in sequences:
            if one.room:
                self.now += self.read_s * max(0, len(one.tokens) - self.read[one.request_id])
                self.read[one.request_id] = len(one.tokens)
        return super().propose(sequences)


def test_drafting_that_pays_goes_on_although_much_was_to_be_read_first() -> None:
    machine = Reading(flat, [0.9], draft_s=0.05, read_s=0.02)
    machine.run(50)
    drafted = 0
    for _ in range(100):
        machine.run(1)
        drafted += bool(machine.drafts[0])
    assert drafted > 80


def test_what_was_read_is_paid_back() -> None:
    rest = Rest()
    rest.invest(10.0)
    assert not rest.left
    rest.add(-TRUST)
    assert rest.left == round((10.0 + TRUST) / FIRST_SHARE)


def test_larger_batches_may_lose_less() -> None:
    lost = []
    for batch in (1, 8, 32):
        rest, count = Rest(batch), 0
        while not rest.left:
            rest.add(-0.5)
            count += 1
        lost.append(count / 2)
    assert lost == [TRUST, TRUST / 4, LEAST_TRUST]


def test_drafting_begins_with_few_sequences() -> None:
    rest = Rest()
    assert [rest.width(count) for count in (1, 7, 32)] == [1, 1, 4]
    rest.add(1.0)  # without drafts
    assert rest.width(32) == 4
    for wide in (8, 16, 32):
        rest.add(1.0, verified=True)
        assert rest.width(32) == wide
    rest.add(-0.5, verified=True)
    assert rest.width(32) == 32
    turn = rest.turn
    rest.begin()
    assert rest.width(32) == 4 and rest.turn == turn + 1


def test_a_batch_drafts_for_more_sequences_as_it_gains() -> None:
    machine = Machine(flat, [0.9] * 32, draft_s=0.001)
    widths = []
    for _ in range(40):
        machine.run(1)
        widths.append(sum(bool(draft) for draft in machine.drafts))
    assert 0 < next(width for width in widths if width) <= 4 and max(widths) == 32
