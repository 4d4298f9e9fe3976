"""Trees of dynamic shape that draft layers grow: EAGLE-2 (Li et al. 2024, https://arxiv.org/abs/2406.16858).

At each depth the likeliest tokens so far are read, all in one step, and each gets a few children. Of all tokens the
likeliest are proposed. How likely a token is follows from the layers' own confidence, so a tree is deep where they are
sure and wide where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import trees
from headrace.core.types import BlockCopy
from headrace.runner.block_tables import BlockTables
from headrace.runner.drafting import Drafted
from headrace.runner.model import StateModel, StepModel, StepSampler
from headrace.runner.packing import pack_next
from headrace.runner.sampling.output import NO_TOKEN
from headrace.runner.sampling.randomness import noise
from headrace.runner.sampling.state import SampleRow
from headrace.speculative.method import Outline, Proposal

CHOICES = 4
"""Children of a token that was read."""
BEAMS = 4
"""Tokens of one sequence that are read at each depth."""
LEVELS = 16
"""Levels of confidence; the share of right tokens is measured for each."""

OUTLINE = Outline((), tuple((level + 0.5) / LEVELS for level in range(LEVELS)))
"""A node's number is the level of its confidence."""

_State = NDArray[np.float32]
"""Of one token, [1, H]."""


class _Tree:
    """One sequence's drafts as they grow. `chances`: of each node that it and all before it are right, as far as the
    layers say. `rows`: of the block tables, the sequence's own first."""

    __slots__ = ("chances", "levels", "one", "parents", "paths", "rows", "tokens")

    def __init__(self, one: Drafted) -> None:
        self.one = one
        self.rows = [one.row]
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.paths: list[tuple[int, ...]] = []
        self.chances: list[float] = []
        self.levels: list[int] = []

    def add(self, beam: _Beam, tokens: Sequence[int], shares: Sequence[float]) -> None:
        """Children of a token, likeliest first."""
        before = self.chances[beam.node] if beam.node >= 0 else 1.0
        for token, share in zip(tokens, shares, strict=True):
            self.tokens.append(token)
            self.parents.append(beam.node)
            self.paths.append((*beam.path, token))
            self.chances.append(before * share)
            self.levels.append(min(LEVELS - 1, int(share * LEVELS)))

    def likeliest(self, first: int) -> list[int]:
        """Of the nodes from `first` on those whose children may be proposed, likeliest first."""
        new = sorted(range(first, len(self.tokens)), key=lambda node: -self.chances[node])
        if len(self.tokens) <= self.one.nodes:
            return new[:BEAMS]
        least = sorted(self.chances, reverse=True)[self.one.nodes - 1] if self.one.nodes else 0.0
        return [node for node in new[:BEAMS] if self.chances[node] > least or not self.one.nodes]

    def proposal(self) -> Proposal:
        if not self.one.nodes:
            return Proposal(tuple(self.tokens))
        order = sorted(range(len(self.tokens)), key=lambda node: -self.chances[node])[: self.one.nodes]
        tokens, parents = trees.subtree(
            self.tokens, self.parents, order
        )  # no child is likelier than its parent
        return Proposal(tokens, 0, parents, tuple(self.levels[node] for node in order))


class _Beam:
    """A token that was read: a node of a tree, or -1 for the last known token, and the drafts up to it. Their keys and
    values are in `row` of the tables, and `state` is what the layers predict there."""

    __slots__ = ("node", "path", "row", "state", "tree")

    def __init__(self, tree: _Tree, node: int, path: tuple[int, ...], row: int, state: _State) -> None:
        self.tree, self.node, self.path, self.row, self.state = tree, node, path, row, state


class TreeGrower:
    """Drafts a chain or a tree after each sequence whose last known token the layers have read.

    The likeliest token of each depth goes on in its parent's row of the block tables. Others take one of the `branches`
    rows from `first_row` on, with scratch blocks from the first draft on, into which the keys and values of the drafts
    before them are copied. Without `branches` it drafts chains.
    """

    def __init__(
        self, model: StepModel[Any], sampler: StepSampler[Any], tables: Sequence[BlockTables | None], *,
        first_row: int, branches: int, max_tokens: int,
    ) -> None:  # fmt: skip
        """`model` and `sampler` are those that are drafted for; `tables` are of the layers' own groups, and
        `max_tokens` is the largest step."""
        self._model, self._sampler = model, sampler
        self._tables = [table for table in tables if table is not None]
        self._first_row, self._branches, self._max_tokens = first_row, branches, max_tokens
        self._each = (
            min((table.group.scratch // branches for table in self._tables), default=0) if branches else 0
        )

    def grow(
        self, layers: StateModel, sequences: Sequence[Drafted], ready: Mapping[int, _State]
    ) -> dict[int, Proposal]:
        """Of each sequence in `ready` what may follow it; its state is what the layers predict for the last token."""
        growing = {at: _Tree(sequences[at]) for at in ready}
        beams = [_Beam(growing[at], -1, (), sequences[at].row, state) for at, state in ready.items()]
        free = list(range(self._branches))[: max(0, self._max_tokens - len(beams))]
        depth = 0
        while beams:
            depth += 1
            first = {id(beam.tree): len(beam.tree.tokens) for beam in beams}
            self._draw(beams)
            going = {
                id(beam.tree): beam.tree
                for beam in beams
                if depth < beam.tree.one.room and len(beam.tree.tokens) > first[id(beam.tree)]
            }
            chosen = self._choose([(tree, first[name]) for name, tree in going.items()], free)
            beams = self._read(layers, beams, chosen) if chosen else []
        return {at: tree.proposal() for at, tree in growing.items()}

    def _draw(self, beams: Sequence[_Beam]) -> None:
        """Add the children of each beam: what would be drawn there, what would be drawn without that, and so on."""
        logits = self._model.head(np.concatenate([beam.state for beam in beams]))
        rows = [SampleRow(beam.tree.one.state, beam.path) for beam in beams]
        tokens: list[list[int]] = [[] for _ in beams]
        values: list[list[float]] = [[] for _ in beams]
        open_ = list(range(len(beams)))
        for rank in range(CHOICES):
            asked = [rows[at] for at in open_]
            found = self._sampler.sample(logits, asked, open_, with_logprobs=False).tokens
            open_ = [at for at, token in zip(open_, found, strict=True) if token != NO_TOKEN]
            drawn = [token for token in found if token != NO_TOKEN]
            for at, token in zip(open_, drawn, strict=True):
                tokens[at].append(token)
                values[at].append(float(self._sampler.row(logits, at)[token]))
            wide = [place for place, at in enumerate(open_) if beams[at].tree.one.nodes > 1]
            open_, drawn = [open_[place] for place in wide], [drawn[place] for place in wide]
            if not open_ or rank + 1 == CHOICES:
                break
            self._sampler.exclude(logits, open_, drawn)
        shares = confidence(rows, tokens, values)
        for beam, own, found_shares in zip(beams, tokens, shares, strict=True):
            beam.tree.add(beam, own, found_shares)

    def _choose(self, going: Sequence[tuple[_Tree, int]], free: list[int]) -> list[tuple[_Tree, list[int]]]:
        """Which of the newest nodes of each tree are read: the likeliest of each, and of the others the likeliest that
        there are rows for."""
        chosen = [(tree, tree.likeliest(first)) for tree, first in going]
        wanted = sorted(
            (
                (-tree.chances[node], index, node)
                for index, (tree, nodes) in enumerate(chosen)
                for node in nodes[1:]
            ),
        )
        kept = [nodes[:1] for _, nodes in chosen]
        for _, index, node in wanted:
            tree = chosen[index][0]
            if len(kept[index]) == len(tree.rows):
                if not free:
                    continue
                tree.rows.append(self._open(tree.one, free.pop()))
            kept[index].append(node)
        return [(tree, nodes) for (tree, _), nodes in zip(chosen, kept, strict=True) if nodes]

    def _open(self, one: Drafted, branch: int) -> int:
        """A row that is a copy of the sequence's own, with scratch blocks from the first draft on."""
        row = self._first_row + branch
        for table in self._tables:
            scratch = table.group.num_blocks + branch * self._each
            logical = len(one.tokens) // table.group.block_size
            table.branch(one.row, row, logical, range(scratch, scratch + self._each))
        return row

    def _read(
        self, layers: StateModel, beams: Sequence[_Beam], chosen: Sequence[tuple[_Tree, list[int]]]
    ) -> list[_Beam]:
        """Read nodes in one step, each after its parent, which is one of the beams."""
        places = {(id(beam.tree), beam.node): beam for beam in beams}
        copies: list[BlockCopy] = []
        read: list[_Beam] = []
        for tree, nodes in chosen:
            parents = [places[id(tree), tree.parents[node]] for node in nodes]
            heirs = {id(parent): place for place, parent in reversed([*enumerate(parents)])}
            idle = [row for row in tree.rows if row not in {parent.row for parent in parents}]
            for place, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
                row = parent.row
                if heirs[id(parent)] != place:
                    row = idle.pop(0)
                    copies += self._copies(tree.one, parent, row)
                read.append(_Beam(tree, node, tree.paths[node], row, parent.state))
        if copies:
            layers.copy_blocks(copies)
        positions = [len(beam.tree.one.tokens) + len(beam.path) - 1 for beam in read]
        step = pack_next(positions, [beam.row for beam in read], self._tables)
        tokens = np.array([beam.path[-1] for beam in read], dtype=np.int64)
        states = np.concatenate([beam.state for beam in read])
        found = layers.forward(step, states, self._model.embed(tokens))
        for at, beam in enumerate(read):
            beam.state = found[at : at + 1].copy()
        return read

    def _copies(self, one: Drafted, parent: _Beam, row: int) -> list[BlockCopy]:
        """Copies of the blocks that hold drafts up to `parent`, and of the tokens before them in the first."""
        first, last = len(one.tokens), len(one.tokens) + len(parent.path) - 1
        return [
            BlockCopy(group, table.block_at(parent.row, logical), table.block_at(row, logical))
            for group, table in enumerate(self._tables)
            for logical in range(first // table.group.block_size, last // table.group.block_size + 1)
        ]


@np.errstate(over="ignore", invalid="ignore")  # whatever comes of it, drafts can only be wrong
def confidence(
    rows: Sequence[SampleRow], tokens: Sequence[Sequence[int]], logits: Sequence[Sequence[float]]
) -> list[list[float]]:
    """How likely each of the choices for one place, a row, is to be the model's.

    A token is the arg-max of logit / temperature + noise, and the noise is the model's too. The choices share the
    softmax of these sums, as they would if the model's sums were those and Gumbel noise of their own. At temperature 0
    that is the softmax of the logits.
    """
    width = max(map(len, tokens))
    if width < 2:
        return [[1.0] * len(own) for own in tokens]
    sums = np.full((len(rows), width), -np.inf)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for at, (own, values) in enumerate(zip(tokens, logits, strict=True)):
        sums[at, : len(own)], ids[at, : len(own)] = values, own
    # Before they are divided: a temperature may be as small as floats are.
    sums -= sums.max(axis=1, keepdims=True)
    drawn = [at for at, row in enumerate(rows) if not row.state.params.greedy]
    if drawn:
        some = [rows[at] for at in drawn]
        sums[drawn] /= np.array([row.state.params.temperature for row in some])[:, None]
        sums[drawn] += noise([row.state.seed for row in some], [row.position for row in some], ids[drawn])
    shares = np.exp(sums - sums.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    known = np.isfinite(shares).all(axis=1)  # not where the layers' logits are infinite
    return [
        shares[at, : len(own)].tolist() if known[at] else [1.0 / max(1, len(own))] * len(own)
        for at, own in enumerate(tokens)
    ]
