"""How much is drafted, in simulated time: near the best length, nothing where it does not pay; trying costs little."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import BlockCopy, NewSequence, SeqSlice
from headrace.runner.drafting import Drafted
from headrace.runner.sampling.state import SequenceState
from headrace.speculative.clock import StepClock
from headrace.speculative.control import Speculation
from headrace.speculative.method import Proposal

STATE = SequenceState(NewSequence(SamplingParams(), (1,), 1, 0, frozenset()), 100)


class Machine:
    """Sequences that decode: time passes as `step_s` of the step's tokens says, and by `draft_s` a drafted token."""

    def __init__(
        self, step_s: Callable[[int], float], rates: Sequence[float], *, draft_s: float = 0.0, most: int = 8,
        seed: int = 0, free: bool = False, noise: float = 0.0,
    ) -> None:  # fmt: skip
        self.now = 0.0
        self.step_s, self.rates, self.draft_s, self.free = step_s, rates, draft_s, free
        self.name, self.asked, self.needs_hidden, self.needs_states = "simulated", 0, False, False
        self.outline = None
        self._rng, self._noise = random.Random(seed), noise
        self.most = most
        self.speculation = Speculation([self], most=most, clock=lambda: self.now)
        self.drafts: list[tuple[int, ...]] = [()] * len(rates)
        self.tokens = [1000] * len(rates)
        self.embedded = 0  # tokens of other requests in each step, which are not drafted for
        self.others = 0  # these requests

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        self.asked += 1
        longest = max(one.room for one in sequences)
        self.now += self.draft_s * (longest or 1)  # it reads the new tokens in any case
        return [Proposal((1,) * one.room) for one in sequences]

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """There is nothing to read."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        raise AssertionError("there is no KV")

    def release(self, request_id: int) -> None:
        pass

    def run(self, steps: int) -> float:
        """Tokens a second over so many steps."""
        began, before = self.now, sum(self.tokens)
        for _ in range(steps):
            size = sum(1 + len(draft) for draft in self.drafts) + self.embedded
            self.now += self.step_s(size) * (1 + self._rng.random() * self._noise)
            sequences = []
            for at, (rate, draft) in enumerate(zip(self.rates, self.drafts, strict=True)):
                accepted = 0
                while accepted < len(draft) and self._rng.random() < rate:
                    accepted += 1
                work = SeqSlice(at, (1,) * (1 + len(draft)), self.tokens[at], True, len(draft), self.most)
                self.tokens[at] += accepted + 1
                known = self.tokens[at]
                sequences.append(
                    Drafted(at, at, work, range(known + 1), known, 0, self.most, accepted, STATE, ("", ""))
                )
            slices = len(sequences) + self.others
            if self.speculation.rests(slices, decoding=size == len(sequences)):
                self.drafts = [()] * len(sequences)
            else:
                self.drafts = [tokens for tokens, _ in self.speculation.draft(sequences, size)]
        return (sum(self.tokens) - before) / (self.now - began)


def best(step_s: Callable[[int], float], rate: float, draft_s: float, most: int) -> float:
    """Tokens a second of one sequence with the best fixed length."""
    return max(
        sum(rate**depth for depth in range(length + 1)) / (step_s(1 + length) + draft_s * max(1, length))
        for length in range(most + 1)
    )


def flat(tokens: int) -> float:
    return 1.0 + 0.02 * tokens


def steep(tokens: int) -> float:
    return 0.2 + 0.8 * tokens


USUAL = {(0.3, 0.2), (0.8, 0.05)}


@pytest.mark.parametrize(
    ("rate", "draft_s"),
    [
        pytest.param(rate, draft_s, marks=() if (rate, draft_s) in USUAL else pytest.mark.long)
        for rate in (0.3, 0.6, 0.8, 0.95)
        for draft_s in (0.0, 0.05, 0.2)
    ],
)
def test_it_is_near_the_best_length(rate: float, draft_s: float) -> None:
    machine = Machine(flat, [rate], draft_s=draft_s, noise=0.1)
    machine.run(300)
    assert machine.run(1500) > 0.92 / 1.05 * best(flat, rate, draft_s, 8)  # noise is 0.05 on average


@pytest.mark.parametrize(
    ("step_s", "rate", "draft_s"), [(steep, 0.3, 0.1), (flat, 0.0, 0.2), (flat, 0.02, 0.0)]
)
@pytest.mark.parametrize("free", [False, True])
def test_what_does_not_pay_costs_little(
    step_s: Callable[[int], float], rate: float, draft_s: float, free: bool
) -> None:
    machine = Machine(step_s, [rate], draft_s=0.0 if free else draft_s, free=free)
    machine.run(200)
    assert machine.run(1500) > 0.97 / step_s(1)


def test_a_full_batch_is_left_alone_where_a_step_is_bound_by_its_products() -> None:
    many = Machine(steep, [0.5] * 16, draft_s=0.05)
    many.run(100)
    assert many.run(1000) > 0.97 * 16 / steep(16)
    assert sum(map(len, many.drafts)) <= 16


def test_a_sequence_that_is_easy_gets_longer_drafts_than_one_that_is_not() -> None:
    machine = Machine(lambda tokens: 1.0 + 0.1 * tokens, [0.95, 0.1], draft_s=0.02)
    machine.run(400)
    lengths = [0, 0]
    for _ in range(300):
        machine.run(1)
        lengths = [total + len(draft) for total, draft in zip(lengths, machine.drafts, strict=True)]
    assert lengths[0] > 3 * lengths[1]


@pytest.mark.long
def test_it_notices_when_drafts_become_right_or_wrong() -> None:
    machine = Machine(flat, [0.0], draft_s=0.1)
    machine.run(2000)
    machine.rates = [0.9]
    machine.run(1500)
    assert machine.run(1000) > 0.8 * best(flat, 0.9, 0.1, 8)
    machine.rates = [0.0]
    machine.run(300)
    assert machine.run(3000) > 0.96 / flat(1)


def test_embeddings_beside_decoding_do_not_count_as_its_cost() -> None:
    machine = Machine(flat, [0.5, 0.5], draft_s=0.05)
    machine.run(300)
    known = machine.speculation.costs(2, 0.0)
    machine.embedded = 100
    machine.run(100)
    after = machine.speculation.costs(2, 0.0)
    assert known is not None and after is not None and after.plain_s == pytest.approx(known.plain_s, rel=0.01)


def test_counts_say_how_deep_drafts_were_right() -> None:
    machine = Machine(flat, [0.8], seed=5)
    machine.run(1500)
    (counts,) = machine.speculation.counts
    first, second, *_ = counts.accepted_by_depth
    assert counts.accepted == sum(counts.accepted_by_depth)
    assert abs(first / counts.drafts - 0.8) < 0.04 and abs(second / first - 0.8) < 0.06
    assert counts.drafted > counts.accepted > 0


def test_a_clock_reads_between_sizes_and_forgets() -> None:
    clock = StepClock()

    def seconds(tokens: int) -> float:
        return round(clock.curve().seconds(tokens) or -1.0, 2)

    assert seconds(3) == -1.0 and not clock.knows(3)
    for _ in range(10):
        clock.add(2, 1.0)
        clock.add(6, 2.0)
    assert [seconds(tokens) for tokens in (1, 2, 4, 6, 9)] == [1.0, 1.0, 1.5, 2.0, 2.0]
    assert clock.knows(2) and not clock.knows(1)
    clock.add(2, 50.0)  # the core was taken away
    assert 1.0 < seconds(2) <= 1.05
    for _ in range(100):
        clock.add(2, 1.6)
    assert abs(seconds(2) - 1.6) < 0.01
    clock.add(4000, 9.0)  # prefill
    clock.add(0, 9.0)
    assert 1.9 < seconds(5000) < 2.0  # and that was measured a while ago


def test_a_size_that_was_slow_once_is_tried_again() -> None:
    clock = StepClock()
    clock.add(1, 1.0)
    clock.add(3, 40.0)
    clock.add(7, 1.3)
    assert round(clock.curve().seconds(3) or 0, 1) == 1.3  # a larger one took less
    clock.add(8, 30.0)
    for _ in range(2000):
        clock.add(1, 1.0)
    assert 1.0 < (clock.curve().seconds(8) or 0) < 9.0


class Look(Machine):
    """A machine with a second method before it, which costs nothing, always has something to say, and is right with
    probability `look`."""

    def __init__(self, look: float, **options: Any) -> None:
        super().__init__(flat, [0.85], draft_s=0.05, **options)
        self.look = look
        self.speculation = Speculation([_Free(), self], most=self.most, clock=lambda: self.now)

    def run(self, steps: int) -> float:
        began, before = self.now, sum(self.tokens)
        for _ in range(steps):
            method = self.speculation._of(0).method
            self.rates = [self.look if method == 0 else 0.85]
            super().run(1)
        return (sum(self.tokens) - before) / (self.now - began)


class _Free:
    name, free, needs_hidden, needs_states, outline = "free", True, False, False, None

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        return [Proposal((2,) * one.room) for one in sequences]

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """Nothing is missed."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """There is no KV."""

    def release(self, request_id: int) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize(("look", "first"), [(0.1, False), (0.97, True)])
def test_the_better_of_two_methods_drafts(look: float, first: bool) -> None:
    machine = Look(look)
    machine.run(300)
    before = [counts.drafts for counts in machine.speculation.counts]
    rate = machine.run(1000)
    free, other = (
        counts.drafts - old for counts, old in zip(machine.speculation.counts, before, strict=True)
    )
    assert (free > 5 * other) if first else (other > 5 * free > 0)
    expected = best(flat, 0.97, 0.0, 8) if first else best(flat, 0.85, 0.05, 8)
    assert rate > 0.88 * expected
