"""What an executor asks of a drafter: tokens that may follow each sequence, to be verified in its next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.record import record
from headrace.core.trees import Draft
from headrace.core.types import BlockCopy, SeqSlice
from headrace.runner.sampling.state import SequenceState


@record
class Drafted:
    """A sequence whose slice was just run, as a drafter sees it.

    `tokens` are its prompt and all its output; they belong to the executor and grow with every step. The first
    `computed` of them have their KV in the cache; `found` of them had it when the sequence was started. `room` is the
    most tokens to propose one after the other, 0 where none may follow; `nodes` the most in all where a tree may be
    proposed. `accepted` of the slice's own drafts were right. Nothing of it may show in the drafts of sequences with
    another `owner`: a user and a cache salt. `hidden` [H] is the model's final hidden state that gave the last token,
    and `states` [n, H] are those of the last n computed tokens, as many as the step had and could give; None where the
    drafter did not ask or there is none.
    """

    request_id: int
    row: int  # in the block tables
    work: SeqSlice
    tokens: Sequence[int]
    computed: int
    found: int
    room: int
    accepted: int
    state: SequenceState
    owner: tuple[str, str]
    hidden: NDArray[np.float32] | None = None
    states: NDArray[np.float32] | None = None
    nodes: int = 0


class Drafter(Protocol):
    """Proposes tokens. Wrong ones cost time, and nothing else."""

    @property
    def needs_hidden(self) -> bool:
        """Whether it reads `Drafted.hidden` of the next step."""
        ...

    @property
    def needs_states(self) -> bool:
        """Whether it reads `Drafted.states` of the next step."""
        ...

    @property
    def resting(self) -> bool:
        """Whether no draft will follow the next step, as far as is known: it needs no room for any."""
        ...

    def rests(self, sequences: int, *, decoding: bool) -> bool:
        """Whether this step needs no call of `draft`. Asked once after each step of so many slices; `decoding` says
        that each of them was one token of a sequence that goes on."""
        ...

    def draft(self, sequences: Sequence[Drafted], tokens: int) -> list[Draft]:
        """For each sequence tokens that may follow, at most `room` of them one after the other. Called after a step
        unless the drafter rests, with every sequence whose slice was run without a fault; `tokens` are those of all
        slices, embeddings among them."""
        ...

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copies of blocks in the drafter's own KV groups, counted from the first of these."""
        ...

    def release(self, request_id: int) -> None:
        """The sequence has ended, or starts again. Unknown ones are ignored."""
        ...
