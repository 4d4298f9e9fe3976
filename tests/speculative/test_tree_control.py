"""How large a tree is drafted, in simulated time, and which of its tokens are verified."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from headrace.core import trees
from headrace.core.params import SamplingParams
from headrace.core.types import BlockCopy, NewSequence, SeqSlice
from headrace.runner.drafting import Drafted
from headrace.runner.sampling.state import SequenceState
from headrace.speculative.choice import Candidate, choose, tree
from headrace.speculative.clock import StepClock
from headrace.speculative.control import Speculation
from headrace.speculative.method import Outline, Proposal

STATE = SequenceState(NewSequence(SamplingParams(), (1,), 1, 0, frozenset()), 100)
WIDTH, DEPTH = 3, 4


def outline(rates: Sequence[float]) -> tuple[list[tuple[int, ...]], Outline]:
    """The best trees where the r-th child is right with probability rates[r]: paths of ranks, and the outline."""
    open_, paths, shares = {(rank,): rate for rank, rate in enumerate(rates)}, [], {}
    while len(paths) < 24:
        best = max(open_, key=lambda path: open_[path])
        shares[best] = open_.pop(best)
        paths.append(best)
        if len(best) < DEPTH:
            open_.update({(*best, rank): shares[best] * rate for rank, rate in enumerate(rates)})
    places = {path: at for at, path in enumerate(paths)} | {(): -1}
    return paths, Outline(
        tuple(places[path[:-1]] for path in paths), tuple(rates[path[-1]] for path in paths)
    )


class Machine:
    """Sequences whose next token is the r-th choice with probability rates[r], or none of them. Satisfies Method."""

    name, free, needs_hidden, needs_states = "simulated", False, False, False

    def __init__(
        self, step_s: Callable[[int], float], rates: Sequence[float], *, sequences: int = 1, nodes: int = 24,
        branches: int = 23, guesses: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self.now, self.step_s, self.rates = 0.0, step_s, rates
        self.paths, self.outline = outline(guesses or rates)
        self._rng = random.Random(0)
        self.speculation = Speculation(
            [self], most=DEPTH, nodes=nodes, branches=branches, clock=lambda: self.now
        )
        self.drafts: list[trees.Draft] = [((), ())] * sequences
        self.texts = [[0] * 8 for _ in range(sequences)]
        self.most_branches = self.emitted = self.proposed = 0

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        self.now += 0.02
        self.proposed += 1
        return [self._propose(one) for one in sequences]

    def _propose(self, one: Drafted) -> Proposal:
        nodes = [at for at, path in enumerate(self.paths[: one.nodes]) if len(path) <= one.room]
        places = {self.paths[node]: at for at, node in enumerate(nodes)} | {(): -1}
        parents = tuple(places[self.paths[node][:-1]] for node in nodes)
        return Proposal(tuple(self.paths[node][-1] for node in nodes), 0, parents, tuple(nodes))

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        pass

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        raise AssertionError("there is no KV")

    def release(self, request_id: int) -> None:
        pass

    def run(self, steps: int) -> float:
        """Tokens a second over so many steps."""
        began, before = self.now, self.emitted
        for _ in range(steps):
            size = sum(1 + len(tokens) for tokens, _ in self.drafts)
            self.now += self.step_s(size)
            sequences = [self._verified(at, *draft) for at, draft in enumerate(self.drafts)]
            if self.speculation.rests(len(sequences), decoding=size == len(sequences)):
                self.drafts = [((), ())] * len(sequences)
            else:
                self.drafts = self.speculation.draft(sequences, size)
            beside = [
                len(set(range(len(tokens))) - set(parents)) for tokens, parents in self.drafts if parents
            ]
            self.most_branches = max(self.most_branches, sum(beside) - len(beside))
        return (self.emitted - before) / (self.now - began)

    def _verified(self, at: int, tokens: tuple[int, ...], parents: tuple[int, ...]) -> Drafted:
        every = parents or tuple(range(-1, len(tokens) - 1))
        path, node, accepted = [self._draw()], -1, 0
        while found := [n for n, parent in enumerate(every) if parent == node and tokens[n] == path[-1]]:
            node, accepted = found[0], accepted + 1
            path.append(self._draw())
        work = SeqSlice(
            at, (1, *tokens), 100, sample=True, num_draft=len(tokens), draft_parents=parents, room=DEPTH
        )
        self.texts[at] = [*self.texts[at][-8:], *path]
        self.emitted += len(path)
        return Drafted(at, at, work, self.texts[at], 100, 0, DEPTH, accepted, STATE, ("", ""))

    def _draw(self) -> int:
        point = self._rng.random()
        for rank, rate in enumerate(self.rates):
            point -= rate
            if point < 0:
                return rank
        return 99


def best(step_s: Callable[[int], float], machine: Machine) -> float:
    """Tokens a second of one sequence with the best tree of a fixed size."""
    expected, found = 1.0, 1.0 / step_s(1)
    for size, path in enumerate(machine.paths, 1):
        share = 1.0
        for rank in path:
            share *= machine.rates[rank]
        expected += share
        found = max(found, expected / (step_s(1 + size) + 0.02 * DEPTH))
    return found


def flat(tokens: int) -> float:
    return 1.0 + 0.01 * tokens


def steep(tokens: int) -> float:
    return 0.2 + 0.8 * tokens


def test_a_tree_is_as_large_as_pays() -> None:
    machine = Machine(flat, (0.5, 0.2, 0.1))
    machine.run(200)
    assert machine.run(600) > 0.9 * best(flat, machine)
    assert machine.most_branches > 4
    chains = Machine(flat, (0.5, 0.2, 0.1), branches=0)
    chains.run(200)
    assert machine.run(400) > 1.2 * chains.run(600)


@pytest.mark.parametrize("sequences", [1, pytest.param(8, marks=pytest.mark.long)])
def test_no_tree_is_drafted_where_each_token_of_a_step_costs_as_much(sequences: int) -> None:
    machine = Machine(steep, (0.4, 0.1, 0.1), sequences=sequences)
    machine.run(200)
    assert machine.run(800) > 0.96 * sequences / steep(sequences)


def test_states_are_asked_for_only_where_something_may_be_drafted() -> None:
    machine = Machine(steep, (0.0, 0.0, 0.0), guesses=(0.4, 0.1, 0.1))
    machine.speculation._reads_hidden = True
    asked = 0
    for _ in range(400):
        needed, before = machine.speculation.needs_hidden, machine.proposed
        asked += needed
        machine.run(1)
        assert needed or machine.proposed == before
    assert 0 < asked < 40 and machine.proposed


def test_branches_of_all_sequences_stay_within_what_there_is() -> None:
    machine = Machine(flat, (0.5, 0.2, 0.1), sequences=4, branches=6)
    machine.run(150)
    assert machine.most_branches == 6


def test_it_learns_which_choices_are_right() -> None:
    machine = Machine(lambda tokens: 1.0 + 0.1 * tokens, (0.1, 0.7, 0.05), guesses=(0.7, 0.1, 0.05))
    machine.run(400)
    (rates,) = machine.speculation._node_rates
    assert rates is not None and rates.at(0) < 0.2 and rates.at(machine.paths.index((1,))) > 0.5
    machine.run(1)
    assert machine.drafts[0][0][0] == 1  # the second choice leads the main chain


def test_counts_of_trees_are_by_depth() -> None:
    machine = Machine(flat, (0.5, 0.2, 0.1))
    machine.run(600)
    (counts,) = machine.speculation.counts
    first, second, *_ = counts.accepted_by_depth
    assert counts.accepted == sum(counts.accepted_by_depth) and len(counts.accepted_by_depth) <= DEPTH
    assert first / counts.drafts > 0.65 and second < first
    assert counts.drafted > 4 * counts.drafts


def test_candidates_are_taken_with_their_parents_and_within_the_branches() -> None:
    clock = StepClock()
    clock.add(1, 1.0)
    clock.add(9, 1.0)
    found = tree(0, (-1, -1, 0, 0, 1), (1, 1, 2, 2, 2), (0.5, 0.4, 0.3, 0.2, 0.35))

    def nodes(branches: int) -> list[int]:
        return [one.node for one in choose(found, 1, clock.curve(), None, branches)]

    assert nodes(9) == [0, 1, 4, 2, 3]
    assert nodes(1) == [0, 1, 4, 2]
    assert nodes(0) == [0, 2]
    assert choose([Candidate(0.5, 0, 0, -1, 0)], 1, StepClock().curve(), None, 0) != []
