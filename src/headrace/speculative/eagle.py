"""EAGLE (Li et al. 2024): a layer predicts the model's next hidden state of the last one and the token drawn from it.

It reads every token once with the model's own states. Drafting goes on from states that it predicted, whose keys and
values are written again once the model has computed those tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import BlockCopy, SeqSlice
from headrace.runner.block_tables import BlockTables
from headrace.runner.drafting import Drafted
from headrace.runner.model import StateModel, StepModel, StepSampler
from headrace.runner.packing import pack
from headrace.speculative.draft_trees import OUTLINE, TreeGrower
from headrace.speculative.method import NOTHING, Proposal
from headrace.speculative.resting import RECENT_STATES
from headrace.speculative.written import WrittenBlocks

_State = NDArray[np.float32]
"""Of one token, [1, H]."""

_KEPT = RECENT_STATES
"""States of one sequence that wait to be read, at most: while nothing is drafted they are not."""


class _Progress:
    """Of one sequence: the first `stored` tokens have their KV in the layers' groups. The model's states of `waiting`
    tokens from position `first` on are kept, as the steps gave them: a step copies only its own."""

    __slots__ = ("_hidden_size", "_parts", "_skipped", "first", "stored", "waiting")

    def __init__(self, stored: int, hidden_size: int) -> None:
        self.stored, self.first, self.waiting = stored, 0, 0
        self._hidden_size = hidden_size
        self._parts: deque[NDArray[np.float32]] = deque()  # [n, H] each
        self._skipped = 0  # states of the first part that are not kept

    def note(self, one: Drafted) -> None:
        """Keep the states of a step as far as they are to be read still: that before the last token may be, again."""
        new = one.states
        if new is None:
            return
        begin = one.computed - len(new)
        if begin != self.first + self.waiting:
            self._parts.clear()
            self.first, self.waiting, self._skipped = begin, 0, 0
        self._parts.append(new.copy())
        self.waiting += len(new)
        self._drop(self.stored - 2 - self.first)

    def forget(self) -> None:
        """Keep few states: they are not read."""
        self._drop(self.waiting - _KEPT)

    def _drop(self, count: int) -> None:
        """The memory of a part is given back once half of it is not kept."""
        count = min(max(count, 0), self.waiting)
        self.first, self.waiting, self._skipped = (
            self.first + count, self.waiting - count, self._skipped + count,
        )  # fmt: skip
        while self._parts and self._skipped >= len(self._parts[0]):
            self._skipped -= len(self._parts.popleft())
        if self._skipped and 2 * self._skipped >= len(self._parts[0]):
            self._parts[0], self._skipped = self._parts[0][self._skipped :].copy(), 0

    def before(self, start: int, count: int) -> NDArray[np.float32]:
        """[count, H]: for each token from position `start` on the state of the one before, zero where not known."""
        found = np.zeros((count, self._hidden_size), dtype=np.float32)
        least = self.first - (start - 1)  # counted from the first that is asked for, as the next is
        begin = least - self._skipped  # of a part
        for part in self._parts:
            low, high = max(0, begin, least), min(count, begin + len(part))
            if low < high:
                found[low:high] = part[low - begin : high - begin]
            begin += len(part)
        return found


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of sequence `at` that one step reads from position `start` on, and the states before them."""

    at: int
    start: int
    tokens: tuple[int, ...]
    states: NDArray[np.float32]


class EagleMethod:
    """Drafts with layers whose KV groups come after those of the model; satisfies `method.Method`.

    Blocks that a prefix hit brings are taken to hold their KV, as in `ModelMethod`; the state before the first token
    after them is not known, and zero.
    """

    free, needs_hidden, needs_states = False, False, True

    def __init__(
        self,
        layers: StateModel,
        model: StepModel[Any],
        sampler: StepSampler[Any],
        tables: Sequence[BlockTables | None],
        *,
        name: str,
        hidden_size: int,
        max_tokens: int,
        max_seqs: int,
        branches: int = 0,
    ) -> None:
        """`model` and `sampler` are those that are drafted for; `tables` are of the layers' own groups, and
        `max_tokens` is the largest step. With `branches`, which have the rows of the tables after `max_seqs`, it drafts
        trees where it is asked to."""
        self.name = name
        self.outline = OUTLINE if branches else None
        self.layers, self._model = layers, model
        self._tables = tuple(tables)
        self._trees = TreeGrower(
            model, sampler, tables, first_row=max_seqs, branches=branches, max_tokens=max_tokens
        )
        self._written = WrittenBlocks(self._tables)
        self._hidden_size, self._max_tokens = hidden_size, max_tokens
        self._progress: dict[int, _Progress] = {}

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        self._note(sequences)
        ready: dict[int, _State] = {}
        for pieces in self._unread(sequences):
            ready |= self._read(sequences, pieces, ends={one.at for one in pieces if sequences[one.at].room})
        found = self._trees.grow(self.layers, sequences, ready) if ready else {}
        return [found.get(at, NOTHING) for at in range(len(sequences))]

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        for progress in self._note(sequences):
            progress.forget()

    def _note(self, sequences: Sequence[Drafted]) -> list[_Progress]:
        found = []
        for one in sequences:
            progress = self._progress.get(one.request_id)
            if progress is None:
                progress = self._progress[one.request_id] = _Progress(one.found, self._hidden_size)
            progress.note(one)
            found.append(progress)
        return found

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if written := self._written.among(copies):
            self.layers.copy_blocks(written)

    def release(self, request_id: int) -> None:
        self._progress.pop(request_id, None)

    def _unread(self, sequences: Sequence[Drafted]) -> Iterator[list[_Piece]]:
        """What was not read before, in steps that fit; in order, as a later sequence may read what an earlier one
        writes."""
        pieces: list[_Piece] = []
        room = self._max_tokens
        for at, one in enumerate(sequences):
            progress = self._progress[one.request_id]
            end = len(one.tokens) if one.room else one.computed
            start = min(progress.stored, end - 1) if one.room else progress.stored
            while start < end:
                count = min(end - start, room)
                tokens = tuple(one.tokens[start : start + count])
                pieces.append(_Piece(at, start, tokens, progress.before(start, count)))
                start, room = start + count, room - count
                if not room:
                    yield pieces
                    pieces, room = [], self._max_tokens
            progress.stored = max(progress.stored, end)
        if pieces:
            yield pieces

    def _read(
        self, sequences: Sequence[Drafted], pieces: Sequence[_Piece], ends: set[int]
    ) -> dict[int, _State]:
        """Run one step; gives of each sequence of `ends` whose last token is read what the layers say there, [1, H]."""
        work, last, offset = [], {}, 0
        for piece in pieces:
            one = sequences[piece.at]
            work.append(SeqSlice(one.request_id, piece.tokens, piece.start, sample=False))
            offset += len(piece.tokens)
            if piece.at in ends and piece.start + len(piece.tokens) >= len(one.tokens):
                last[piece.at] = offset - 1
        rows = [sequences[piece.at].row for piece in pieces]
        step = pack(work, rows, self._tables, (), tuple(last.values()))
        self._written.add(step)
        states = np.concatenate([piece.states for piece in pieces])
        found = self.layers.forward(step, states, self._model.embed(step.ids))
        return {at: found[i : i + 1].copy() for i, at in enumerate(last)}
