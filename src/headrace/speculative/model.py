"""A smaller model drafts: it reads what the large one read, and goes on alone for a few tokens.

Leviathan et al., "Fast inference from transformers via speculative decoding" (2023). It shares the random numbers of
the model that it drafts for, see `runner.sampling`: so a draft is what that model is likely to draw, not only
what is likely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.core.record import record
from headrace.core.types import BlockCopy, SeqSlice
from headrace.runner.block_tables import BlockTables
from headrace.runner.drafting import Drafted
from headrace.runner.model import StepModel, StepSampler
from headrace.runner.packing import advance, pack, pack_next
from headrace.runner.sampling.output import NO_TOKEN
from headrace.runner.sampling.state import SampleRow
from headrace.runner.step import Step
from headrace.speculative.method import Proposal
from headrace.speculative.written import WrittenBlocks


class _Progress:
    """Of one sequence: how many of its tokens have their KV in the draft model's groups, and the drafts behind them."""

    __slots__ = ("ahead", "stored")

    def __init__(self, stored: int) -> None:
        self.stored = stored
        self.ahead: tuple[int, ...] = ()

    def confirm(self, tokens: Sequence[int]) -> None:
        """The sequence now has these tokens: drafts among them keep their KV."""
        for token in self.ahead:
            if self.stored >= len(tokens) or tokens[self.stored] != token:
                break
            self.stored += 1
        self.ahead = ()


class ModelMethod:
    """Drafts with a model whose KV groups come after those of the model that it drafts for.

    Blocks that a prefix hit brings are taken to hold its KV, too: they do unless drafting was off when they were
    written, and then the drafts are worse. Satisfies `method.Method`.
    """

    free, needs_hidden, needs_states, outline = False, False, False, None

    def __init__(
        self,
        model: StepModel[Any],
        sampler: StepSampler[Any],
        tables: Sequence[BlockTables | None],
        *,
        name: str,
        vocab_size: int,
        max_tokens: int,
    ) -> None:
        """`sampler` and `vocab_size` are of the model that it drafts for; `tables` are those of its own groups, and
        `max_tokens` is its largest step."""
        self.name = name
        self.model, self._sampler, self._vocab_size = model, sampler, vocab_size
        self._tables = tuple(tables)
        self._written = WrittenBlocks(self._tables)
        self._max_tokens = max_tokens
        self._narrow = model.vocab_size < vocab_size
        self._progress: dict[int, _Progress] = {}

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        lengths = [one.room for one in sequences]
        drafts: list[tuple[int, ...]] = [()] * len(sequences)
        going = self._first(sequences, lengths, drafts)
        step: Step | None = None
        while going:
            step = self._next(sequences, drafts, going, step)
            going = self._draw(self.model.forward(step), sequences, lengths, drafts, going)
        return [Proposal(draft) for draft in drafts]

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """It reads what it missed when it is asked again."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if written := self._written.among(copies):
            self.model.copy_blocks(written)

    def release(self, request_id: int) -> None:
        self._progress.pop(request_id, None)

    def _first(
        self, sequences: Sequence[Drafted], lengths: Sequence[int], drafts: list[tuple[int, ...]]
    ) -> list[int]:
        """Read the tokens that were not read before, and draft the first token where one is wanted. Where none is, only
        prompts are read: what follows is read when it is needed."""
        going: list[int] = []
        pieces: list[_Piece] = []
        room = self._max_tokens
        for at, one in enumerate(sequences):
            progress = self._progress.get(one.request_id)
            if progress is None:
                progress = self._progress[one.request_id] = _Progress(one.found)
            progress.confirm(one.tokens)
            if not lengths[at] and one.work.start >= len(one.tokens) - one.state.num_output:
                continue
            end = len(one.tokens) if lengths[at] else one.computed
            start = min(progress.stored, end - 1) if lengths[at] else progress.stored
            while start < end:
                count = min(end - start, room)
                pieces.append(_Piece(at, start, tuple(one.tokens[start : start + count])))
                start, room = start + count, room - count
                if not room:  # in order: a later sequence may read what an earlier one writes
                    going += self._extend(sequences, lengths, drafts, pieces)
                    pieces, room = [], self._max_tokens
            progress.stored = max(progress.stored, end)
        if pieces:
            going += self._extend(sequences, lengths, drafts, pieces)
        return going

    def _extend(
        self,
        sequences: Sequence[Drafted],
        lengths: Sequence[int],
        drafts: list[tuple[int, ...]],
        pieces: Sequence[_Piece],
    ) -> list[int]:
        """Run one step, and draft a token of each sequence whose last one is among the pieces; returns the sequences
        that need another step."""
        ends, drawn = [], []
        work, offset = [], 0
        for piece in pieces:
            one = sequences[piece.at]
            work.append(SeqSlice(one.request_id, self._readable(piece.tokens), piece.start, sample=False))
            offset += len(piece.tokens)
            known = len(one.tokens) + len(drafts[piece.at])
            if len(drafts[piece.at]) < lengths[piece.at] and piece.start + len(piece.tokens) == known:
                ends.append(offset - 1)
                drawn.append(piece.at)
        step = pack(work, [sequences[piece.at].row for piece in pieces], self._tables, ends)
        self._written.add(step)
        logits = self.model.forward(step)
        return self._draw(logits, sequences, lengths, drafts, drawn) if drawn else []

    def _next(
        self,
        sequences: Sequence[Drafted],
        drafts: Sequence[tuple[int, ...]],
        going: Sequence[int],
        before: Step | None,
    ) -> Step:
        """The step that reads the last draft of each sequence of `going`. `before` is the last one of this kind: where
        it had as many sequences it had the same ones."""
        rows = [sequences[at].row for at in going]
        if before is not None and len(before.ids) == len(going):
            step = before
            advance(step, rows, self._tables)
        else:
            positions = [len(sequences[at].tokens) + len(drafts[at]) - 1 for at in going]
            step = pack_next(positions, rows, self._tables, logits=True)
        step.ids = np.array(self._readable(tuple(drafts[at][-1] for at in going)), dtype=np.int64)
        self._written.add(step)
        return step

    def _draw(
        self,
        logits: Any,
        sequences: Sequence[Drafted],
        lengths: Sequence[int],
        drafts: list[tuple[int, ...]],
        drawn: Sequence[int],
    ) -> list[int]:
        """Draft a token of each sequence of `drawn` from its row of logits; returns the sequences that need another
        step."""
        rows = [SampleRow(sequences[at].state, drafts[at]) for at in drawn]
        tokens = self._sampler.sample(_widened(logits, self._vocab_size), rows, with_logprobs=False).tokens
        going = []
        for at, token in zip(drawn, tokens, strict=True):
            if token == NO_TOKEN:
                continue
            drafts[at] = (*drafts[at], token)
            self._progress[sequences[at].request_id].ahead = drafts[at][:-1]
            if len(drafts[at]) < lengths[at]:
                going.append(at)
        return going

    def _readable(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens, with the first one of all in place of those that its own table lacks: drafts are worse there."""
        if not self._narrow:
            return tokens
        size = self.model.vocab_size
        return tuple(token if token < size else 0 for token in tokens)


@record
class _Piece:
    """Tokens of sequence `at` that one step reads, from position `start` on."""

    at: int
    start: int
    tokens: tuple[int, ...]


def _widened(logits: Any, vocab_size: int) -> Any:
    """Logits [R, V] of a model of the same tokens with another padding, as [R, vocab_size]."""
    count, width = logits.shape
    if width == vocab_size:
        return logits
    if width > vocab_size:
        cut = logits[:, :vocab_size]
        return np.ascontiguousarray(cut) if isinstance(logits, np.ndarray) else cut.contiguous()
    if isinstance(logits, np.ndarray):
        wide = np.full((count, vocab_size), -np.inf, dtype=np.float32)
    else:
        wide = logits.new_full((count, vocab_size), -math.inf)
    wide[:, :width] = logits
    return wide
