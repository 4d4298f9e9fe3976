"""How a batch of rows is sampled: which rows take which path, with their parameters as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.runner.sampling.draw import Filters
from headrace.runner.sampling.edits import Edits
from headrace.runner.sampling.state import Draw, SequenceState, first_width


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """Rows start to stop of the work rows, drawn the same way."""

    start: int
    stop: int
    draw: Draw
    width: int  # the first sorted prefix to try; 0 for Draw.WHOLE
    filters: Filters


class SamplingPlan:
    """The paths of one batch of R rows, valid while the rows belong to the same states in the same order.

    Work rows are those that need more than an argmax of the model's logits. They are put in order of their
    path, so that every path works on one contiguous range of rows: first the edited greedy ones, then the
    draw groups.
    """

    def __init__(self, states: list[SequenceState], vocab_size: int, device: torch.device) -> None:
        self.states = states
        greedy = [row for row, state in enumerate(states) if state.draw is Draw.GREEDY]
        work = [row for row, state in enumerate(states) if state.draw is not Draw.GREEDY]
        work.sort(key=lambda row: (states[row].draw, states[row].width))
        chosen = [states[row] for row in work]
        edits = Edits(chosen, vocab_size, device)

        self.order = greedy + work
        """Batch row of each token in the order in which the paths produce them."""
        self.work = work
        """Batch rows [W] of the work rows."""
        self.num_edited = sum(state.draw is Draw.EDITED for state in chosen)
        self.edits: Edits | None = None if edits.empty else edits
        self.greedy_index = _index(greedy, device)
        """Rows to take the argmax of, None when there are none."""
        in_place = self.edits is None and work == list(range(len(states)))
        self.work_index: Tensor | None = None if in_place else _index(work, device)
        """Rows to copy before work; None when there are none or the logits can be read where they are."""
        self.seeds = [state.seed for state in chosen[self.num_edited :]]
        """Of the rows of the draw groups."""
        self.groups = _groups(chosen, self.num_edited, vocab_size, device)
        self.logprob_rows = [row for row, state in enumerate(states) if state.params.logprobs is not None]
        self.plain = not work and not self.logprob_rows
        """True when one argmax is enough."""


def _index(rows: Sequence[int], device: torch.device) -> Tensor | None:
    return torch.tensor(rows, dtype=torch.int64, device=device) if rows else None


def _groups(
    chosen: list[SequenceState], start: int, vocab_size: int, device: torch.device
) -> tuple[DrawGroup, ...]:
    groups: list[DrawGroup] = []
    while start < len(chosen):
        draw, width = chosen[start].draw, chosen[start].width
        stop = start
        while stop < len(chosen) and (chosen[stop].draw, chosen[stop].width) == (draw, width):
            stop += 1
        filters = Filters.of([state.params for state in chosen[start:stop]], draw is Draw.RANKED, device)
        first = first_width(1, vocab_size) if draw is Draw.NUCLEUS else width
        groups.append(DrawGroup(start, stop, draw, first, filters))
        start = stop
    return tuple(groups)
