"""What a drafter computes after each step of a simulated engine: which tokens it reads, and which it drafts.

It follows `speculative.model`, `speculative.eagle` and `speculative.medusa` token by token. While drafting rests
nothing is read; a model reads it when it is asked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.core.types import NewSequence, SeqSlice, SliceResult, StepPlan, StepResult
from headrace.plan.resolved import ResolvedConfig
from headrace.sim.draft_cost import DraftWork
from headrace.sim.work import SliceShape

DraftKind = Literal["model", "layers", "heads"]


@dataclass(slots=True)
class _Sequence:
    """The first `stored` tokens have their KV in the drafter's groups, and those of `ahead` after them, if they turn
    out right. prompt: tokens of the prompt."""

    prompt: int
    stored: int
    ahead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A sequence after its slice: its tokens, those of them with KV in the model's cache, and those now drafted."""

    length: int
    computed: int
    drafts: int


def draft_kind(resolved: ResolvedConfig) -> DraftKind | None:
    """What drafts under an engine's plan; None where nothing does, or tokens are looked up."""
    model = resolved.draft_model
    if model is None:
        return None if resolved.draft_heads is None else "heads"
    return "layers" if model.layers else "model"


class DraftReads:
    """Of one engine. most_tokens: of the drafter's largest step."""

    def __init__(self, kind: DraftKind, most_tokens: int) -> None:
        self._kind, self._most_tokens = kind, most_tokens
        self._sequences: dict[int, _Sequence] = {}

    def after(self, plan: StepPlan, result: StepResult, *, rests: bool = False) -> DraftWork:
        """What follows one step with these results, its drafts among them. rests: none are asked for."""
        for number in plan.released:
            self._sequences.pop(number, None)
        parts = {part.request_id: part for part in result.results}
        found = [self._drafted(work, parts[work.request_id]) for work in plan.slices]
        if rests:
            for work, one in zip(plan.slices, found, strict=True):
                self._pass_over(work, parts[work.request_id], one)
            return DraftWork()
        pieces: list[SliceShape] = []
        for work, one in zip(plan.slices, found, strict=True):
            pieces += self._unread(work, parts[work.request_id], one)
        longest = max((one.drafts for one in found), default=0)
        going = [[one for one in found if one.drafts > depth] for depth in range(1, longest)]
        rounds = tuple(
            (len(ones), sum(one.length + depth for one in ones)) for depth, ones in enumerate(going, 1)
        )
        return DraftWork(tuple(_steps(pieces, self._most_tokens)), rounds)

    def _drafted(self, work: SeqSlice, part: SliceResult) -> _Drafted:
        if work.new is not None:
            self._sequences[work.request_id] = _started(work, work.new)
        rejected = work.num_draft - max(0, len(part.tokens) - 1)
        computed = work.start + len(work.tokens) - rejected
        length = work.start + work.known + len(part.tokens)
        return _Drafted(length, computed, len(part.draft))

    def _pass_over(self, work: SeqSlice, part: SliceResult, one: _Drafted) -> None:
        known = self._sequences[work.request_id]
        if self._kind == "model":
            self._confirm(known, work, part)
        else:  # layers have no states to read these tokens with
            known.stored = max(known.stored, one.computed)

    def _unread(self, work: SeqSlice, part: SliceResult, one: _Drafted) -> Iterator[SliceShape]:
        """What the drafter reads of a sequence, whole."""
        if self._kind == "heads":
            if one.drafts:
                yield SliceShape(1, one.length - 1, 1)
            return
        known = self._sequences[work.request_id]
        if self._kind == "model":
            self._confirm(known, work, part)
            if not one.drafts and work.start >= known.prompt:
                return  # it is read when it is needed
        end = one.length if one.drafts else one.computed
        start = min(known.stored, end - 1) if one.drafts else known.stored
        known.stored = max(known.stored, end)
        known.ahead = part.draft[:-1]
        if start < end:
            yield SliceShape(end - start, start, 1 if one.drafts else 0)

    def _confirm(self, known: _Sequence, work: SeqSlice, part: SliceResult) -> None:
        """Drafts that are among the sequence's tokens now keep their KV."""
        first = work.start + work.known  # the position of the first token that the slice gave
        if known.ahead:
            for token, right in zip(known.ahead, part.tokens[known.stored - first :], strict=False):
                if token != right:
                    break
                known.stored += 1
        known.ahead = ()


def _started(work: SeqSlice, new: NewSequence) -> _Sequence:
    return _Sequence(new.num_prompt, work.start)


def _steps(pieces: Sequence[SliceShape], most: int) -> Iterator[tuple[SliceShape, ...]]:
    """The pieces in steps of at most so many tokens, cut where they do not fit."""
    step: list[SliceShape] = []
    room = most
    for piece in pieces:
        start, end = piece.start, piece.start + piece.tokens
        while start < end:
            count = min(end - start, room)
            step.append(SliceShape(count, start, piece.logits if start + count == end else 0))
            start, room = start + count, room - count
            if not room:
                yield tuple(step)
                step, room = [], most
    if step:
        yield tuple(step)
