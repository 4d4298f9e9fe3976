"""How much to draft: as many tokens as bring the most tokens a second, none where drafting does not pay.

A draft of k tokens is worth the sum of the probabilities that its first 1, 2, … k tokens are right, and costs the time
that a step takes longer with k more tokens, and that of drafting them. All three are measured while the engine runs.
A token of a tree is worth the probability that it and those before it are right.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace.core import trees
from headrace.core.trees import Draft
from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted
from headrace.speculative.acceptance_rates import NodeRates, Own, Rates, chances, node_chances
from headrace.speculative.choice import Candidate, chain, choose, tree, worth
from headrace.speculative.clock import SPIKE, StepClock
from headrace.speculative.method import NOTHING, Method, Proposal
from headrace.speculative.resting import RECENT_STATES, Rest

IDLE_AFTER = 16
"""Steps without a draft after which a model that could draft reads no more prompts, and drafting rests."""
MEASURE_EVERY = 32
"""While drafting rests, one in so many steps is measured."""
FIRST_PLAIN, PLAIN_EVERY = 8, 128
"""Steps with drafts after which one goes without: what such a step costs changes as contexts grow, and as others use
the machine. Each time after a rest it is twice as many, up to the latter."""
TRY_EVERY = 16
"""Of the drafts that a later method is expected to beat, one in so many is verified all the same."""


@dataclass(slots=True)
class MethodCounts:
    """Of one method since the start. `accepted_by_depth[d]`: drafts of which d + 1 tokens in a row were right; `depth`:
    the sum of their depths, for chains the same as `drafted`."""

    name: str
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    depth: int = 0
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
    draft: Proposal = field(default_factory=Proposal)


class Speculation:
    """Asks methods in order, the first that has something to say drafts, unless a later one that costs time is expected
    to bring more tokens a second; satisfies `runner.drafting.Drafter`.

    `adaptive` False drafts as many tokens as there is room for, at most `most` one after the other. Methods that can
    draft trees of up to `nodes` tokens for a sequence, which have at most `branches` beside the main chains in a step.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        *,
        most: int,
        adaptive: bool = True,
        nodes: int = 0,
        branches: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.methods = tuple(methods)
        self.most, self.adaptive = most, adaptive
        self.nodes, self.branches = (nodes, branches) if branches else (0, 0)
        self._outlines = [method.outline if self.nodes else None for method in methods]
        largest = [() if one is None else one.parents[: self.nodes] for one in self._outlines]
        self._shapes = [(parents, trees.depths(parents)) for parents in largest]
        self._node_rates = [None if one is None else NodeRates(one.rates) for one in self._outlines]
        self._reads_hidden = any(method.needs_hidden for method in methods)
        self._reads_states = any(method.needs_states for method in methods)
        self.counts = tuple(MethodCounts(method.name) for method in methods)
        self._now = clock
        self._steps = StepClock()
        self._rounds = [
            StepClock() for _ in methods
        ]  # seconds of drafting a token, by the number of sequences
        self._rates: list[dict[int, Rates]] = [{} for _ in methods]
        self._sequences: dict[int, _Sequence] = {}
        self._left_out: Counter[tuple[int, int]] = Counter()  # by method and kind
        self._left: float | None = None  # when the last call ended
        self._before: frozenset[int] = frozenset()  # its sequences
        self._since_draft = self._since_plain = 0
        self._plain_every = FIRST_PLAIN
        self._widths = [0] * len(
            methods
        )  # for how many sequences each was asked at most, since the last rest
        self._widened = False  # in the last call of `draft`
        self._idle = 0  # steps in a row that might have been drafted for, and were not
        self._rests: dict[int, Rest] = {}  # by the size of the batch, see _rest
        self._resting: Rest | None = None  # that of the last step, while it lasts
        self._quiet = self._quiet_for = 0  # steps of so many sequences that need nothing, of `_resting`
        self._spent_s = 0.0  # in the last call of `draft`
        self._decoded = 0  # tokens of the last step while drafting rests, if all of it was decoding
        self._may_probe, self._probing, self._turn = True, False, 0
        self._verified = False  # the last step had drafts
        self.resting, self.needs_hidden, self.needs_states = False, self._reads_hidden, self._reads_states

    def rests(self, sequences: int, *, decoding: bool) -> bool:
        """See `runner.drafting.Drafter`. Layers that draft see the last steps of a rest: they need their states."""
        if self._quiet and sequences == self._quiet_for:  # nearly every step, so it does nothing else
            self._quiet -= 1
            return True
        if not self.adaptive:
            return False
        self._end_quiet()
        rest = self._rest(sequences)
        if not rest.left:
            self._go_to_rest(None)
            return False
        if self._reads_states and rest.left <= RECENT_STATES:
            return False
        rest.left -= 1
        phase = rest.left % MEASURE_EVERY
        if phase > 1:
            self._left = None
            self._quiet, self._quiet_for = phase - 2, sequences
            rest.left -= self._quiet
        else:
            now = self._now()
            if self._left is not None and decoding and self._decoded == sequences:
                self._steps.add(sequences, now - self._left)
            self._left, self._decoded = now, sequences if decoding else 0
        self._since_draft += 1 + self._quiet
        self._go_to_rest(rest)
        return True

    def _end_quiet(self) -> None:
        """Give back the steps that a rest was to go on for in silence: the batch has changed, or they are over."""
        if self._quiet and self._resting is not None:
            self._resting.left += self._quiet
        self._quiet = 0

    def _rest(self, sequences: int) -> Rest:
        size = sequences.bit_length()
        rest = self._rests.get(size)
        if rest is None:
            rest = self._rests[size] = Rest(sequences)
        return rest

    def _go_to_rest(self, rest: Rest | None) -> None:
        """After this step, as long as `rest` has steps left; the last of them is one that drafts may follow."""
        self._resting = rest if rest is not None and rest.left else None
        self.resting = self._resting is not None
        self.needs_hidden = self._reads_hidden and not self.resting
        self.needs_states = self._reads_states and (
            self._resting is None or self._resting.left <= RECENT_STATES
        )
        if rest is not None:
            self._before = frozenset()
            self._may_probe, self._idle = True, 0
            self._plain_every = FIRST_PLAIN
            self._widths = [0] * len(self.methods)

    def draft(self, sequences: Sequence[Drafted], tokens: int) -> list[Draft]:
        if self.adaptive and (rest := self._rest(len(sequences))).left:
            rest.left -= 1
            return self._pass_over(sequences)
        entered = self._now()
        decoding, gained_s = self._learn(sequences, tokens, entered)
        if self.adaptive and self._settle(len(sequences), gained_s):
            return self._pass_over(sequences)
        rooms = [min(one.room, self.most) for one in sequences]
        if self.adaptive:
            rooms = self._narrowed(rooms)
        plain = self.adaptive and self._wants_plain(len(sequences))
        self._widened = False
        proposals: list[tuple[int, Proposal]] = [(-1, NOTHING)] * len(sequences)
        for at, method in enumerate(self.methods):
            before = list(proposals)
            if self.adaptive and not method.free and not plain:
                self._leave(at, sequences, rooms, proposals)
            open_rooms = [
                0 if plain or earlier.tokens else room
                for room, (_, earlier) in zip(rooms, proposals, strict=True)
            ]
            nodes = [self.nodes if room and self._outlines[at] else 0 for room in open_rooms]
            if self.adaptive and not method.free:
                open_rooms, nodes = self._sizes(at, sequences, open_rooms, proposals)
                if not any(open_rooms) and (decoding or self._since_draft > IDLE_AFTER):
                    proposals = before
                    method.pass_over(sequences)
                    continue
            found = self._propose(at, method, sequences, open_rooms, nodes)
            proposals = [(at, new) if new.tokens else old for old, new in zip(before, found, strict=True)]
        if self.adaptive:
            self._cut(sequences, proposals)
        drafts = [(proposal.tokens, proposal.parents) for _, proposal in proposals]
        drafted = any(tokens for tokens, _ in drafts)
        self._remember(sequences, proposals)
        self._since_draft = 0 if drafted else self._since_draft + 1
        self._idle = self._idle + 1 if decoding and not drafted else 0
        self._since_plain = self._since_plain + 1 if drafted else 0
        self._before = frozenset(one.request_id for one in sequences)
        self._left = self._now()
        self._spent_s = self._left - entered
        return drafts

    def _settle(self, batch: int, gained_s: float) -> bool:
        """The last step with what it verified brought so many seconds, or cost them: whether drafting now rests."""
        plain, rest = self._steps.curve().seconds(batch), self._rest(batch)
        if plain is not None:
            if self._widened:  # with what was read first, it does not say what drafting costs from now on
                rest.invest((self._spent_s - gained_s) / plain)
            else:
                rest.add((gained_s - self._spent_s) / plain, verified=self._verified)
        if self._idle > IDLE_AFTER and not rest.left:
            rest.begin()
        self._spent_s = 0.0
        return bool(rest.left)

    def _narrowed(self, rooms: list[int]) -> list[int]:
        """Room for as many sequences as drafts are tried for now: the same ones in each step, others after a rest."""
        rest, open_ = self._rest(len(rooms)), [index for index, room in enumerate(rooms) if room]
        width = rest.width(len(rooms))
        if width >= len(open_):
            return rooms
        chosen = {open_[(rest.turn * width + at) % len(open_)] for at in range(width)}
        return [room if index in chosen else 0 for index, room in enumerate(rooms)]

    def _pass_over(self, sequences: Sequence[Drafted]) -> list[Draft]:
        """Nothing is drafted, but layers get the states that they will read."""
        for method in self.methods:
            if method.needs_states:
                method.pass_over(sequences)
        self._remember(sequences, [(-1, NOTHING)] * len(sequences))
        self._left = None
        self._since_draft += 1
        self._go_to_rest(self._rest(len(sequences)))
        return [((), ())] * len(sequences)

    def costs(self, batch: int, length: float) -> Costs | None:
        """As measured, for so many sequences with drafts of so many tokens each; None where no step was measured."""
        steps = self._steps.curve()
        plain, step = steps.seconds(batch), steps.seconds(round(batch * (1 + length)))
        if plain is None or step is None:
            return None
        drafting = sum(
            (self._rounds[at].curve().seconds(batch) or 0.0) * length * counts.depth / max(1, counts.drafted)
            for at, (one, counts) in enumerate(zip(self.methods, self.counts, strict=True))
            if not one.free
        )
        return Costs(plain, step, drafting)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for method in self.methods:
            method.copy_blocks(copies)

    def release(self, request_id: int) -> None:
        self._sequences.pop(request_id, None)
        for method in self.methods:
            method.release(request_id)

    def _learn(self, sequences: Sequence[Drafted], tokens: int, now: float) -> tuple[bool, float]:
        """Count what was verified. If all of the step's tokens were decoding, which is returned, measure it: the
        seconds by which it was shorter than decoding as many tokens without drafts."""
        verified_any = False
        emitted = computed = 0
        decoding = bool(sequences)
        for one in sequences:
            verified = one.work.num_draft
            decoding = decoding and one.work.sample and len(one.work.tokens) == 1 + verified
            emitted, computed = emitted + 1 + one.accepted, computed + len(one.work.tokens)
            if verified:
                verified_any = True
                self._count(one)
        self._verified = verified_any
        if self._probing and verified_any:
            self._may_probe = emitted > len(sequences)  # it was right: try again
            self._probing = False
        decoding = decoding and computed == tokens
        going_on = self._left is not None and self._before >= {one.request_id for one in sequences}
        if not decoding or not going_on or self._left is None:
            return decoding, 0.0
        seconds = now - self._left
        self._steps.add(tokens, seconds)
        curve = self._steps.curve()
        plain, known = curve.seconds(len(sequences)), curve.seconds(tokens)
        if plain is None or known is None:
            return decoding, 0.0
        return decoding, plain * emitted / len(sequences) - min(seconds, SPIKE * known)

    def _count(self, one: Drafted) -> None:
        """Learn from the drafts of one sequence that were verified."""
        known = self._sequences.get(one.request_id)
        if known is None or known.method < 0:
            return
        verified = one.work.num_draft
        counts = self.counts[known.method]
        counts.drafts, counts.drafted = counts.drafts + 1, counts.drafted + verified
        counts.accepted += one.accepted
        depths, deepest = counts.accepted_by_depth, one.work.span - one.work.known
        counts.depth += deepest
        depths += [0] * (deepest - len(depths))
        for depth in range(one.accepted):
            depths[depth] += 1
        node_rates, outline = self._node_rates[known.method], self._outlines[known.method]
        rates = self._rates[known.method].setdefault(known.draft.kind, Rates())
        if node_rates is not None and outline is not None and known.draft.nodes:
            if one.work.tokens[one.work.known :] == known.draft.tokens:  # nothing was cut
                _learn_nodes(one, known.draft, node_rates, known.own[known.method])
            if outline.is_dynamic:
                rates.add(deepest, one.accepted)
            return
        known.own[known.method].add(rates, verified, one.accepted)
        rates.add(verified, one.accepted)

    def _wants_plain(self, tokens: int) -> bool:
        """Whether the next step is to go without drafts, so that its cost is known."""
        if self._since_plain >= self._plain_every:
            self._plain_every = min(PLAIN_EVERY, 2 * self._plain_every)
            return True
        return not self._steps.knows(tokens)

    def _propose(
        self,
        at: int,
        method: Method,
        sequences: Sequence[Drafted],
        rooms: Sequence[int],
        nodes: Sequence[int],
    ) -> list[Proposal]:
        began, width = self._now(), sum(map(bool, rooms))
        if width > self._widths[at]:
            self._widths[at], self._widened = width, True
        found = method.propose(
            [
                one if (one.room, one.nodes) == (room, size) else replace(one, room=room, nodes=size)
                for one, room, size in zip(sequences, rooms, nodes, strict=True)
            ]
        )
        longest = max((trees.depth(one.parents, len(one.tokens)) for one in found), default=0)
        if not method.free and longest:
            rows = sum(bool(one.tokens) for one in found)
            self._rounds[at].add(rows, (self._now() - began) / longest)
        return found

    def _leave(
        self,
        at: int,
        sequences: Sequence[Drafted],
        rooms: Sequence[int],
        proposals: list[tuple[int, Proposal]],
    ) -> None:
        """Take out the proposals of earlier methods where this one is expected to bring more tokens a second. Now and
        then one stays: else nobody would know when they become better."""
        base, steps, rounds = len(sequences), self._steps.curve(), self._rounds[at].curve()
        for index, (one, room) in enumerate(zip(sequences, rooms, strict=True)):
            method, proposal = proposals[index]
            if not room or not proposal.tokens:
                continue
            known = worth(self._proposed(index, one, method, proposal), base, steps, None)
            other = worth(self._outlined(at, index, one, room), base, steps, rounds)
            if other > known:
                self._left_out[method, proposal.kind] += 1
                if self._left_out[method, proposal.kind] % TRY_EVERY:
                    proposals[index] = (-1, NOTHING)

    def _sizes(
        self,
        at: int,
        sequences: Sequence[Drafted],
        rooms: Sequence[int],
        proposals: Sequence[tuple[int, Proposal]],
    ) -> tuple[list[int], list[int]]:
        """How many tokens a method that costs time shall draft for each sequence: one after the other, and in all where
        it drafts trees, else 0."""
        candidates = [
            candidate
            for index, (one, room) in enumerate(zip(sequences, rooms, strict=True))
            if room
            for candidate in self._outlined(at, index, one, room)
        ]
        best = self._best(sequences, candidates, at)
        outline = self._outlines[at]
        if not any(best) and any(rooms) and self._may_probe:
            lengths = self._probe(rooms)
            return lengths, lengths if outline else [0] * len(lengths)
        depths = [max((one.depth + 1 for one in taken), default=0) for taken in best]
        if outline is None:
            return depths, [0] * len(depths)
        if outline.is_dynamic:  # which of its tokens are verified is chosen when they are there
            return depths, [self.nodes if depth else 0 for depth in depths]
        return depths, [1 + max((one.node for one in taken), default=-1) for taken in best]

    def _outlined(self, at: int, index: int, one: Drafted, room: int) -> list[Candidate]:
        """What a method could draft for a sequence."""
        own, outline, node_rates = self._of(one.request_id).own[at], self._outlines[at], self._node_rates[at]
        if outline is None or node_rates is None or outline.is_dynamic:
            rates = self._rates[at].get(0) or Rates()
            return chain(index, chances(rates, own, room))
        parents, depths = self._shapes[at]
        found = node_chances(node_rates, own, parents, range(len(parents)))
        return [one for one in tree(index, parents, depths, found) if one.depth < room]

    def _proposed(self, index: int, one: Drafted, at: int, proposal: Proposal) -> list[Candidate]:
        """The tokens of a proposal."""
        own, node_rates = self._of(one.request_id).own[at], self._node_rates[at]
        if node_rates is not None and proposal.nodes:
            parents = proposal.parents or tuple(range(-1, len(proposal.tokens) - 1))
            found = node_chances(node_rates, own, parents, proposal.nodes)
            return tree(index, parents, trees.depths(parents), found)
        rates = self._rates[at].get(proposal.kind) or Rates()
        return chain(index, chances(rates, own, len(proposal.tokens)))

    def _best(
        self, sequences: Sequence[Drafted], candidates: Sequence[Candidate], at: int | None
    ) -> list[list[Candidate]]:
        """Of each sequence the candidates that give the most tokens a second together. `at` is the method that has
        still to draft them; None where they are there, and only verifying them costs time."""
        base = sum(bool(one.room) or one.work.sample for one in sequences) or 1
        rounds = None if at is None else self._rounds[at].curve()
        chosen: list[list[Candidate]] = [[] for _ in sequences]
        for one in choose(candidates, base, self._steps.curve(), rounds, self.branches):
            chosen[one.index].append(one)
        return chosen

    def _cut(self, sequences: Sequence[Drafted], proposals: list[tuple[int, Proposal]]) -> None:
        """Keep of each draft the tokens that it pays to verify, likeliest first: they make up the main chain."""
        if self._probing:
            return
        candidates = [
            candidate
            for index, (one, (method, proposal)) in enumerate(zip(sequences, proposals, strict=True))
            if proposal.tokens
            for candidate in self._proposed(index, one, method, proposal)
        ]
        kept = [[one.node for one in taken] for taken in self._best(sequences, candidates, None)]
        if candidates and not any(kept) and self._may_probe:
            kept = [list(range(length)) for length in self._probe([len(p.tokens) for _, p in proposals])]
        for index, nodes in enumerate(kept):
            method, proposal = proposals[index]
            if nodes != list(range(len(proposal.tokens))):
                proposals[index] = (method, _part(proposal, nodes))

    def _probe(self, rooms: Sequence[int]) -> list[int]:
        """Short drafts for a few of the sequences, in turns."""
        self._may_probe, self._probing = False, True
        open_ = [index for index, room in enumerate(rooms) if room]
        count = max(1, len(rooms) // 8)
        chosen = {open_[(self._turn + at) % len(open_)] for at in range(count)}
        self._turn += count
        return [min(room, 2) if index in chosen else 0 for index, room in enumerate(rooms)]

    def _remember(self, sequences: Sequence[Drafted], proposals: Sequence[tuple[int, Proposal]]) -> None:
        for one, (method, proposal) in zip(sequences, proposals, strict=True):
            known = self._of(one.request_id)
            known.method, known.draft = (method, proposal) if proposal.tokens else (-1, NOTHING)

    def _of(self, request_id: int) -> _Sequence:
        known = self._sequences.get(request_id)
        if known is None:
            known = self._sequences[request_id] = _Sequence([Own() for _ in self.methods])
        return known


def _part(proposal: Proposal, nodes: Sequence[int]) -> Proposal:
    if not proposal.parents:
        return replace(proposal, tokens=proposal.tokens[: len(nodes)], nodes=proposal.nodes[: len(nodes)])
    tokens, parents = trees.subtree(proposal.tokens, proposal.parents, nodes)
    kept = tuple(proposal.nodes[node] for node in nodes) if proposal.nodes else ()
    return replace(proposal, tokens=tokens, parents=parents, nodes=kept)


def _learn_nodes(one: Drafted, draft: Proposal, rates: NodeRates, own: Own) -> None:
    """Learn from a tree of which the first `one.accepted` tokens that followed were right."""
    emitted = one.tokens[len(one.tokens) - one.accepted - 1 :]
    parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
    at: int | None = -1
    for token in emitted:
        children = [node for node, parent in enumerate(parents) if parent == at]
        if not children:
            return
        right = next((node for node in children if draft.tokens[node] == token), None)
        own.observe(right is not None, min(1.0, sum(rates.at(draft.nodes[node]) for node in children)))
        for node in children:
            rates.add(draft.nodes[node], node == right)
        if right is None:
            return
        at = right
