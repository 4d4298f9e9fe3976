"""How much to draft: as many tokens as bring the most tokens a second, none where drafting does not pay.

A draft of k tokens is worth the sum of the probabilities that its first 1, 2, … k tokens are right, and costs the time
that a step takes longer with k more tokens, and that of drafting them. All three are measured while the engine runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted
from headrace.speculative.acceptance_rates import Own, Rates, chances
from headrace.speculative.clock import StepClock
from headrace.speculative.method import NOTHING, Method, Proposal

PROBE_FIRST, PROBE_LAST = 32, 512
"""Steps without a draft after which one is tried: at first, and at most, as each try that does not pay doubles them."""
IDLE_AFTER = 16
"""Steps without a draft after which a model that could draft reads no more prompts."""
PLAIN_EVERY = 128
"""Steps with drafts after which one goes without: what such a step costs changes as contexts grow."""


@dataclass(slots=True)
class MethodCounts:
    """Of one method since the start. `accepted_by_depth[d]`: drafts whose first d + 1 tokens were all right."""

    name: str
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a step without drafts, of one with them, and of drafting."""

    plain_s: float
    step_s: float
    draft_s: float


@dataclass(slots=True)
class _Sequence:
    """What is known of one sequence's drafts."""

    own: list[Own]
    method: int = -1  # that of the draft to be verified next
    kind: int = 0


class Speculation:
    """Asks methods in order, the first that has something to say drafts; satisfies `runner.drafting.Drafter`.

    `adaptive` False drafts as many tokens as there is room for, at most `most`.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        *,
        most: int,
        adaptive: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.methods = tuple(methods)
        self.most, self.adaptive = most, adaptive
        self.needs_hidden = any(method.needs_hidden for method in methods)
        self.needs_states = any(method.needs_states for method in methods)
        self.counts = tuple(MethodCounts(method.name) for method in methods)
        self._now = clock
        self._steps = StepClock()
        self._rounds = [
            StepClock() for _ in methods
        ]  # seconds of drafting a token, by the number of sequences
        self._rates: list[dict[int, Rates]] = [{} for _ in methods]
        self._sequences: dict[int, _Sequence] = {}
        self._left: float | None = None  # when the last call ended
        self._before: frozenset[int] = frozenset()  # its sequences
        self._since_draft = self._since_plain = 0
        self._probe_after = PROBE_FIRST
        self._probing = False

    def draft(self, sequences: Sequence[Drafted]) -> list[tuple[int, ...]]:
        entered = self._now()
        decoding = self._learn(sequences, entered)
        rooms = [min(one.room, self.most) for one in sequences]
        plain = self.adaptive and self._wants_plain(len(sequences))
        proposals: list[tuple[int, Proposal]] = [(-1, NOTHING)] * len(sequences)
        for at, method in enumerate(self.methods):
            open_rooms = [
                0 if plain or earlier.tokens else room
                for room, (_, earlier) in zip(rooms, proposals, strict=True)
            ]
            if self.adaptive and not method.free:
                open_rooms = self._lengths(at, sequences, open_rooms, proposals)
                if not any(open_rooms) and (decoding or self._since_draft > IDLE_AFTER):
                    method.pass_over(sequences)
                    continue
            found = self._propose(at, method, sequences, open_rooms)
            proposals = [(at, new) if new.tokens else old for old, new in zip(proposals, found, strict=True)]
        if self.adaptive:
            self._cut(sequences, proposals)
        drafts = [proposal.tokens for _, proposal in proposals]
        self._remember(sequences, proposals)
        self._since_draft = 0 if any(drafts) else self._since_draft + 1
        self._since_plain = self._since_plain + 1 if any(drafts) else 0
        self._before = frozenset(one.request_id for one in sequences)
        self._left = self._now()
        return drafts

    def costs(self, batch: int, length: float) -> Costs | None:
        """As measured, for so many sequences with drafts of so many tokens each; None where no step was measured."""
        steps = self._steps.curve()
        plain, step = steps.seconds(batch), steps.seconds(round(batch * (1 + length)))
        if plain is None or step is None:
            return None
        rounds = [
            self._rounds[at].curve().seconds(batch) or 0.0
            for at, one in enumerate(self.methods)
            if not one.free
        ]
        return Costs(plain, step, sum(rounds) * length)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for method in self.methods:
            method.copy_blocks(copies)

    def release(self, request_id: int) -> None:
        self._sequences.pop(request_id, None)
        for method in self.methods:
            method.release(request_id)

    def _learn(self, sequences: Sequence[Drafted], now: float) -> bool:
        """Count what was verified, and measure the step if all of it was decoding, which is returned."""
        decoding = bool(sequences)
        for one in sequences:
            verified = one.work.num_draft
            decoding = decoding and one.work.sample and len(one.work.tokens) == 1 + verified
            known = self._sequences.get(one.request_id)
            if known is None or not verified or known.method < 0:
                continue
            counts = self.counts[known.method]
            counts.drafts, counts.drafted = counts.drafts + 1, counts.drafted + verified
            counts.accepted += one.accepted
            depths = counts.accepted_by_depth
            depths += [0] * (verified - len(depths))
            for depth in range(one.accepted):
                depths[depth] += 1
            rates = self._rates[known.method].setdefault(known.kind, Rates())
            known.own[known.method].add(rates, verified, one.accepted)
            rates.add(verified, one.accepted)
        going_on = self._left is not None and self._before >= {one.request_id for one in sequences}
        if decoding and going_on and self._left is not None:
            self._steps.add(sum(len(one.work.tokens) for one in sequences), now - self._left)
        return decoding

    def _wants_plain(self, tokens: int) -> bool:
        """Whether the next step is to go without drafts, so that its cost is known."""
        return self._since_plain >= PLAIN_EVERY or not self._steps.knows(tokens)

    def _wants_probe(self) -> bool:
        return self._since_draft >= self._probe_after

    def _propose(
        self, at: int, method: Method, sequences: Sequence[Drafted], rooms: Sequence[int]
    ) -> list[Proposal]:
        began = self._now()
        found = method.propose(
            [
                one if one.room == room else replace(one, room=room)
                for one, room in zip(sequences, rooms, strict=True)
            ]
        )
        if not method.free and (longest := max((len(one.tokens) for one in found), default=0)):
            rows = sum(bool(one.tokens) for one in found)
            self._rounds[at].add(rows, (self._now() - began) / longest)
        return found

    def _lengths(
        self,
        at: int,
        sequences: Sequence[Drafted],
        rooms: Sequence[int],
        proposals: Sequence[tuple[int, Proposal]],
    ) -> list[int]:
        """How many tokens a method that costs time shall draft for each sequence."""
        self._probing = False
        best = self._best(at, sequences, rooms, proposals)
        if any(best) or not any(rooms):
            return best
        if self._wants_probe():
            self._probing = True
            self._probe_after = min(2 * self._probe_after, PROBE_LAST)
            return _probe(rooms)
        return best

    def _best(
        self,
        at: int | None,
        sequences: Sequence[Drafted],
        rooms: Sequence[int],
        proposals: Sequence[tuple[int, Proposal]],
    ) -> list[int]:
        """The numbers of drafted tokens that give the most tokens a second.

        Tokens are taken in falling order of the probability that they are accepted. With `at` None the drafts are
        there, and only verifying them costs time.
        """
        gains: list[tuple[float, int]] = []
        for index, (one, room) in enumerate(zip(sequences, rooms, strict=True)):
            method, kind = (at, 0) if at is not None else (proposals[index][0], proposals[index][1].kind)
            if not room or method is None or method < 0:
                continue
            own = self._of(one.request_id).own[method]
            rates = self._rates[method].get(kind) or Rates()
            gains += [(chance, index) for chance in chances(rates, own, room)]
        base = sum(bool(one.room) or one.work.sample for one in sequences) or 1
        steps = self._steps.curve()
        plain = steps.seconds(base)
        if plain is None:
            return list(rooms)
        gains.sort(key=lambda gain: -gain[0])
        rounds = None if at is None else self._rounds[at].curve()
        expected, tokens, drafting, best_rate, taken = float(base), base, 0.0, base / plain, 0
        depths, rows = [0] * len(sequences), [0] * (max(rooms) + 1)
        for count, (gain, index) in enumerate(gains, 1):
            depth = depths[index]
            depths[index] = depth + 1
            expected, tokens = expected + gain, tokens + 1
            if rounds is not None:  # one more sequence drafts this deep
                drafting += (rounds.seconds(rows[depth] + 1) or 0.0) - (
                    (rounds.seconds(rows[depth]) or 0.0) if rows[depth] else 0.0
                )
                rows[depth] += 1
            rate = expected / ((steps.seconds(tokens) or plain) + drafting)
            if rate > best_rate:
                best_rate, taken = rate, count
        lengths = [0] * len(sequences)
        for _, index in gains[:taken]:
            lengths[index] += 1
        return lengths

    def _cut(self, sequences: Sequence[Drafted], proposals: list[tuple[int, Proposal]]) -> None:
        """Keep of each draft as many tokens as it pays to verify."""
        if self._probing:
            return
        rooms = [len(proposal.tokens) for _, proposal in proposals]
        lengths = self._best(None, sequences, rooms, proposals)
        if any(rooms) and not any(lengths) and self._wants_probe():
            self._probe_after = min(2 * self._probe_after, PROBE_LAST)
            lengths = _probe(rooms)
        elif any(lengths):
            self._probe_after = PROBE_FIRST
        for index, length in enumerate(lengths):
            method, proposal = proposals[index]
            if length < len(proposal.tokens):
                proposals[index] = (method, Proposal(proposal.tokens[:length], proposal.kind))

    def _remember(self, sequences: Sequence[Drafted], proposals: Sequence[tuple[int, Proposal]]) -> None:
        for one, (method, proposal) in zip(sequences, proposals, strict=True):
            known = self._of(one.request_id)
            known.method, known.kind = (method, proposal.kind) if proposal.tokens else (-1, 0)

    def _of(self, request_id: int) -> _Sequence:
        known = self._sequences.get(request_id)
        if known is None:
            known = self._sequences[request_id] = _Sequence([Own() for _ in self.methods])
        return known


def _probe(rooms: Sequence[int]) -> list[int]:
    """Short drafts for a few of the sequences."""
    left, lengths = max(1, len(rooms) // 8), []
    for room in rooms:
        lengths.append(min(room, 2) if left > 0 else 0)
        left -= bool(room)
    return lengths
