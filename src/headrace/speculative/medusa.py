"""Medusa: heads on the model's last hidden state, each of which guesses one of the tokens to come (Cai et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import trees
from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted
from headrace.runner.model import StepModel, StepSampler
from headrace.runner.sampling.output import NO_TOKEN
from headrace.runner.sampling.state import SampleRow
from headrace.speculative.heads import MedusaHeads
from headrace.speculative.method import NOTHING, Outline, Proposal

_RATES = (0.6, 0.15, 0.07, 0.04, 0.03)
"""A first guess at how often the first choices of a head are right, where the heads' folder does not say."""

Path = tuple[int, ...]


class MedusaMethod:
    """Drafts a token with each head in turn, or with the first choices of each a tree; satisfies `method.Method`.

    A head's first choice is drawn with the random numbers of its position, the second is what would be drawn without
    the first, and so on. Heads without a matrix of their own share the model's, for which all of their rows are one
    product.
    """

    free, needs_hidden, needs_states = False, True, False

    def __init__(
        self, heads: MedusaHeads, model: StepModel[Any], sampler: StepSampler[Any], name: str
    ) -> None:
        self.name = name
        self._heads, self._model, self._sampler = heads, model, sampler
        self._paths: tuple[Path, ...] = heads.tree
        self.outline = _outline(heads) if heads.tree else None

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        found = [NOTHING] * len(sequences)
        going = [at for at, one in enumerate(sequences) if one.room and one.hidden is not None]
        if not going:
            return found
        drafting = [sequences[at] for at in going]
        wanted = [self._wanted(one) for one in drafting]
        count = max(len(widths) for widths in wanted)
        states = np.stack([one.hidden for one in drafting if one.hidden is not None])  # [S, H]
        choices = self._choose(drafting, wanted, self._logits(states, count))
        for at, own in zip(going, choices, strict=True):
            found[at] = self._proposal(sequences[at], own)
        return found

    def _wanted(self, one: Drafted) -> list[int]:
        """How many choices of each head are drafted for a sequence."""
        widths = [1] * min(len(self._heads.blocks), one.room)
        for path in self._paths[: one.nodes]:
            if len(path) <= len(widths):
                widths[len(path) - 1] = max(widths[len(path) - 1], path[-1] + 1)
        return widths

    def _choose(
        self, sequences: Sequence[Drafted], wanted: Sequence[list[int]], logits: Sequence[tuple[Any, int]]
    ) -> list[list[list[int]]]:
        """Of each sequence and head so many choices, likeliest first; fewer where no more are allowed."""
        found: list[list[list[int]]] = [[[] for _ in widths] for widths in wanted]
        assumed: list[Path] = [()] * len(sequences)
        for head, (part, first) in enumerate(logits):
            rows = [row for row, widths in enumerate(wanted) if head < len(widths)]
            asked = [SampleRow(sequences[row].state, assumed[row]) for row in rows]
            tokens = self._sampler.sample(
                part, asked, [first + row for row in rows], with_logprobs=False
            ).tokens
            for row, token in zip(rows, tokens, strict=True):
                if token != NO_TOKEN:
                    found[row][head].append(token)
                assumed[row] = (*assumed[row], token)
        for rank in range(1, max((width for widths in wanted for width in widths), default=0)):
            self._next_choices(rank, sequences, wanted, logits, assumed, found)
        return found

    def _next_choices(
        self,
        rank: int,
        sequences: Sequence[Drafted],
        wanted: Sequence[list[int]],
        logits: Sequence[tuple[Any, int]],
        assumed: Sequence[Path],
        found: Sequence[list[list[int]]],
    ) -> None:
        """Add choice `rank` of each sequence and head that has one more; each array of logits is asked once."""
        parts = {id(part): part for part, _ in logits}
        for key, part in parts.items():
            cells = [
                (row, head)
                for head, (own, _) in enumerate(logits)
                for row, widths in enumerate(wanted)
                if id(own) == key and head < len(widths) and widths[head] > rank == len(found[row][head])
            ]
            if not cells:
                continue
            at = [logits[head][1] + row for row, head in cells]
            self._sampler.exclude(part, at, [found[row][head][-1] for row, head in cells])
            asked = [SampleRow(sequences[row].state, assumed[row][:head]) for row, head in cells]
            tokens = self._sampler.sample(part, asked, at, with_logprobs=False).tokens
            for (row, head), token in zip(cells, tokens, strict=True):
                if token != NO_TOKEN:
                    found[row][head].append(token)

    def _proposal(self, one: Drafted, choices: Sequence[list[int]]) -> Proposal:
        """The tree of a sequence, or a chain of first choices where none is wanted."""
        if not one.nodes or self.outline is None:
            missing = next((head for head, own in enumerate(choices) if not own), len(choices))
            return Proposal(tuple(own[0] for own in choices[:missing]))
        places: dict[Path, int] = {(): -1}
        tokens: list[int] = []
        nodes: list[int] = []
        parents: list[int] = []
        for node, path in enumerate(self._paths[: one.nodes]):
            depth, rank = len(path) - 1, path[-1]
            if depth >= len(choices) or rank >= len(choices[depth]) or path[:-1] not in places:
                continue
            places[path] = len(tokens)
            tokens.append(choices[depth][rank])
            parents.append(places[path[:-1]])
            nodes.append(node)
        return Proposal(tuple(tokens), 0, () if trees.is_chain(parents) else tuple(parents), tuple(nodes))

    @np.errstate(over="ignore", invalid="ignore")  # whatever comes of it, drafts can only be wrong
    def _logits(self, states: NDArray[np.float32], count: int) -> list[tuple[Any, int]]:
        """Of each of the first `count` heads: logits, and which row of them is the first sequence's."""
        after = [self._after_blocks(head, states) for head in range(count)]
        own = self._heads.heads[:count]
        shared = [head for head in range(count) if own[head] is None]
        product = self._model.head(np.concatenate([after[head] for head in shared])) if shared else None
        found: list[tuple[Any, int]] = []
        for head in range(count):
            matrix = own[head]
            if matrix is None:
                found.append((product, shared.index(head) * len(states)))
            else:
                found.append((np.ascontiguousarray(after[head] @ matrix.T), 0))
        return found

    def _after_blocks(self, head: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
        for weight, bias in self._heads.blocks[head]:
            inner = states @ weight.T + bias
            states = states + inner / (1.0 + np.exp(-inner))
        return states

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """It reads nothing but the last state."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """There is no KV."""

    def release(self, request_id: int) -> None:
        """Nothing is kept of a sequence."""


def _outline(heads: MedusaHeads) -> Outline:
    """The tree as parents, and how often each node was right where its parent was."""
    places = {path: node for node, path in enumerate(heads.tree)} | {(): -1}
    parents = tuple(places[path[:-1]] for path in heads.tree)
    if not heads.shares:
        return Outline(parents, tuple(_RATES[min(path[-1], len(_RATES) - 1)] for path in heads.tree))
    shares = heads.shares
    rates = tuple(
        share / max(1e-6, 1.0 if parent < 0 else shares[parent])
        for share, parent in zip(shares, parents, strict=True)
    )
    return Outline(parents, tuple(min(1.0, rate) for rate in rates))
