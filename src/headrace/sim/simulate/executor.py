"""An executor without a model: it returns tokens at once, and drafts that are right as often as asked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.types import NewSequence, SeqSlice, SliceResult, StepPlan, StepResult


class TokenSource(Protocol):
    """What sequences sample, and what is drafted for them. Both depend on the sequence and its length alone, so that it
    goes on after a preemption as it would have."""

    def start(self, number: int, new: NewSequence) -> None:
        """Sequence `number` is about to run, for the first time or again."""
        ...

    def release(self, number: int) -> None:
        """It ended, or was preempted."""
        ...

    def tokens(self, number: int, length: int, count: int) -> Sequence[int]:
        """The next `count` tokens of a sequence that has `length` tokens, prompt included."""
        ...

    def draft(self, number: int, length: int, room: int) -> tuple[int, ...]:
        """At most `room` tokens that may follow the first `length`; () without speculation."""
        ...


@dataclass(frozen=True, slots=True)
class Drafts:
    """`most` tokens are drafted for a sequence in each step. Each is right with the probability `acceptance` if those
    before it were: independent draws, from a seed."""

    most: int
    acceptance: float
    seed: int = 0


class SyntheticTokens:
    """Every sequence repeats the last token of its prompt, until it has as many as its request asked for."""

    def __init__(self, vocab_size: int, drafts: Drafts | None = None) -> None:
        self._vocab_size = vocab_size
        self._drafts = drafts
        self._token: dict[int, int] = {}

    def start(self, number: int, new: NewSequence) -> None:
        self._token[number] = new.tokens[new.num_prompt - 1]

    def release(self, number: int) -> None:
        del self._token[number]

    def tokens(self, number: int, length: int, count: int) -> Sequence[int]:
        return [self._token[number]] * count

    def draft(self, number: int, length: int, room: int) -> tuple[int, ...]:
        if self._drafts is None or not room:
            return ()
        count = min(room, self._drafts.most)
        rng = random.Random(f"drafts {self._drafts.seed} {number} {length}")
        right = 0
        while right < count and rng.random() < self._drafts.acceptance:
            right += 1
        token = self._token[number]
        wrong = (token + 1) % self._vocab_size
        return (token,) * right + (wrong,) * (count - right)


def answer(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What `SyntheticTokens` makes a sequence with this prompt answer."""
    return (prompt[-1],) * count


Lengths = Callable[[int, int], int]
"""How many tokens to draft for so many sequences of so many tokens each."""


class Drafting(Protocol):
    """Seconds that drafting takes after a step with this result; rests: no drafts were asked for."""

    def __call__(self, plan: StepPlan, result: StepResult, *, rests: bool) -> float: ...


class SimulatedExecutor:
    """Satisfies `core.executor.Executor` with a token source. `drafting_s`: seconds of drafting after the last step.

    lengths: None drafts as many tokens as there is room for.
    """

    def __init__(
        self, source: TokenSource, drafting: Drafting | None = None, lengths: Lengths | None = None
    ) -> None:
        self.source = source
        self.drafting_s = 0.0
        self._drafting, self._lengths = drafting, lengths
        self._most: float = math.inf  # drafts of a sequence after this step
        self._ends: dict[int, float] = {}  # length of each sequence when its request has all of its tokens

    def execute(self, plan: StepPlan) -> StepResult:
        """The result of a step, at once."""
        for number in plan.released:
            self.source.release(number)
            self._ends.pop(number, None)
        if self._lengths is not None:
            self._most = self._length(plan, self._lengths)
        result = StepResult(plan.step_id, tuple(map(self._run, plan.slices)))
        self.drafting_s = 0.0
        if self._drafting is not None:
            self.drafting_s = self._drafting(plan, result, rests=not self._most)
        return result

    @staticmethod
    def _length(plan: StepPlan, lengths: Lengths) -> int:
        """For the sequences of a step that decode in the next one."""
        ends = [work.start + work.known for work in plan.slices if work.sample]
        return lengths(len(ends), sum(ends) // len(ends)) if ends else 0

    def _run(self, work: SeqSlice) -> SliceResult:
        number = work.request_id
        if work.new is not None:
            self.source.start(number, work.new)
            most = work.new.params.max_tokens
            self._ends[number] = math.inf if most is None else work.new.num_prompt + most
        if not work.sample:
            return SliceResult(number)
        length = work.start + work.known
        if not (work.num_draft or work.room):
            return SliceResult(number, tuple(self.source.tokens(number, length, 1)))
        sampled = self.source.tokens(number, length, work.num_draft + 1)
        drafted = work.tokens[work.known :]
        right = 0
        while right < len(drafted) and drafted[right] == sampled[right]:
            right += 1
        emitted = tuple(sampled[: right + 1])
        length += len(emitted)
        room = min(work.room, self._most, self._ends[number] - length - 1)  # the last token is never drafted
        return SliceResult(number, emitted, self.source.draft(number, length, max(0, int(room))))
