"""The executor of real models: a step plan in, tokens out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import (
    BlockCopy,
    NewSequence,
    SeqSlice,
    SliceResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from headrace.errors import RequestError
from headrace.runner.block_tables import BlockTables
from headrace.runner.branches import Branched, Branches
from headrace.runner.drafting import Drafted, Drafter
from headrace.runner.model import Logits, StepModel, StepSampler
from headrace.runner.packing import Rows, logits_rows, pack
from headrace.runner.pooling import Pool, add_states, pooled_rows
from headrace.runner.sampling.output import NO_TOKEN, SampleOutput
from headrace.runner.sampling.row_faults import NOT_SAMPLED, NOT_STARTED, RowFaults, error_message
from headrace.runner.sampling.state import SampleRow, SequenceState
from headrace.runner.sampling.token_masks import GrammarRunner, Matcher
from headrace.runner.step import Step
from headrace.runner.verification import assumed, follow

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sequence:
    """A sequence that the scheduler has started: its row in the block tables and its sampling state."""

    row: int
    state: SequenceState
    prompt: tuple[int, ...]  # kept if its log-probabilities are requested, else empty
    tokens: list[int]  # prompt and output, kept for a drafter, else empty
    found: int  # tokens whose KV was there when it was started
    owner: tuple[str, str]
    next: SampleRow  # the row of the token after the recorded output
    pool: Pool | None = None  # of a sequence to embed


class ModelExecutor(Generic[Logits]):
    """Runs plans on one model; satisfies `core.executor.Executor`.

    A draft is verified by sampling at every draft position as if there were no draft: since a token's noise depends on
    (seed, position, token) alone, the accepted tokens are exactly those that decoding one by one would give.

    `tables` are those of all KV groups, see `block_tables.all_tables`: first the model's own, then the drafter's.
    """

    def __init__(
        self,
        model: StepModel[Logits],
        sampler: StepSampler[Logits],
        tables: Sequence[BlockTables | None],
        *,
        max_seqs: int,
        grammars: GrammarRunner | None = None,
        drafter: Drafter | None = None,
        draft_groups: int = 0,
        most_rows: int | None = None,
        branches: int = 0,
    ) -> None:
        """`most_rows`: logits and hidden states that one step can give; a step that needs more gives no drafter any.

        `branches`: the most branches of trees of drafts that one step can have, all main chains apart. They take so
        many more rows of the tables, and the scratch blocks of the model's KV groups.
        """
        self.model = model
        self.sampler = sampler
        self.drafter = drafter
        self._most_rows = most_rows
        self._decoded = False  # each slice of the last step was one token of a sequence that goes on
        self._hidden: dict[int, NDArray[np.float32]] = {}  # states of the last kept tokens of each slice
        self._faults = RowFaults(sampler)
        self._failed_drafts = 0  # steps in a row whose drafting failed
        self._grammars = grammars
        self._num_matchers = 0
        self._all_tables = tuple(tables)
        self._tables = self._all_tables[: len(tables) - draft_groups]
        self._unchanged = (None,) * len(tables)
        self._branches = Branches(self._tables, max_seqs, branches)
        self._free_rows = list(range(max_seqs - 1, -1, -1))
        self._sequences: dict[int, _Sequence] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step, see `core.executor.Executor`."""
        for request_id in plan.released:
            self._release(request_id)
        if plan.copies:
            self._copy(plan.copies)
        failed: list[SliceResult] = []
        slices: list[SeqSlice] = []
        for work in plan.slices:
            error = self._update(work)
            if error is None:
                slices.append(work)
            else:
                failed.append(SliceResult(work.request_id, error=error))
        done = self._run(slices) if slices else []
        drafter = self.drafter
        if drafter is None:
            return StepResult(plan.step_id, (*failed, *done))
        if done and not drafter.rests(len(slices), decoding=self._decoded):
            done = self._draft(drafter, slices, done)
        return StepResult(plan.step_id, (*failed, *done), drafter.resting)

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        own = len(self._tables)
        self.model.copy_blocks([copy for copy in copies if copy.group < own])
        theirs = [replace(copy, group=copy.group - own) for copy in copies if copy.group >= own]
        if theirs and self.drafter is not None:
            self.drafter.copy_blocks(theirs)

    def _update(self, work: SeqSlice) -> str | None:
        """Start the slice's sequence if it is new, and update its block tables; returns an error or None."""
        if work.new is not None:
            try:
                self._sequences[work.request_id] = self._start(work.new, work.start + work.num_stored)
            except RequestError as error:
                return str(error)
            except Exception as error:
                return error_message(NOT_STARTED, error)
        if work.tables == self._unchanged:
            return None
        sequence = self._sequences[work.request_id]
        for table, update in zip(self._all_tables, work.tables, strict=True):
            if update is not None and table is not None:
                table.apply(sequence.row, update)
        return None

    def _start(self, new: NewSequence, found: int) -> _Sequence:
        matcher = self._matcher(new)
        state = SequenceState(new, self.model.vocab_size, matcher)
        self._num_matchers += matcher is not None
        prompt = () if new.params.prompt_logprobs is None else new.tokens[: new.num_prompt]
        pool = None if new.pooling is None else Pool(new.pooling, new.num_prompt)
        tokens = [] if self.drafter is None else list(new.tokens)
        return _Sequence(
            self._free_rows.pop(), state, prompt, tokens, found, new.owner, SampleRow(state), pool
        )

    def _matcher(self, new: NewSequence) -> Matcher | None:
        if new.params.grammar is None:
            return None
        if self._grammars is None:
            raise RequestError("this engine does not support grammars")
        return self._grammars.start(new)

    def _release(self, request_id: int) -> None:
        sequence = self._sequences.pop(request_id, None)  # None: it failed to start
        if sequence is not None:
            for table in self._all_tables:
                if table is not None:
                    table.clear(sequence.row)
            if self.drafter is not None:
                self.drafter.release(request_id)
            self._free_rows.append(sequence.row)
            self._num_matchers -= sequence.state.matcher is not None

    def _run(self, slices: list[SeqSlice]) -> list[SliceResult]:
        sequences = [self._sequences[work.request_id] for work in slices]
        self._decoded = all(
            len(work.tokens) == 1 and work.sample and not work.num_draft for work in slices
        ) and not any(sequence.prompt for sequence in sequences)
        if self._decoded:
            return self._decode(slices, sequences)
        self._branches.begin()
        branched = {
            at: self._branches.lay_out(work, sequences[at].row)
            for at, work in enumerate(slices)
            if work.draft_parents
        }
        computed = [branched[at].work if at in branched else work for at, work in enumerate(slices)]
        scored = [_scored(work, sequence) for work, sequence in zip(computed, sequences, strict=True)]
        selected, rows = logits_rows(computed, scored)
        pools = [sequence.pool for sequence in sequences]
        pooled = pooled_rows(computed, pools)
        counts = self._state_counts(computed, rows, len(selected) + len(pooled))
        step = self._pack(computed, sequences, branched, selected, [*pooled, *_last_tokens(computed, counts)])
        logits, samples = self._forward(step, *_sample_rows(computed, sequences, rows))
        vectors = add_states(computed, pools, self.model.hidden()) if pooled else {}
        self._hidden = _by_slice(computed, counts, self.model.hidden()[len(pooled) :]) if any(counts) else {}
        results = []
        kept: list[BlockCopy] = []
        first = 0
        for at, (work, sequence, part) in enumerate(zip(computed, sequences, rows, strict=True)):
            try:
                prompt = self._score(logits, work, sequence, part)
                found = vectors.get(work.request_id)
                path = [] if found else follow(work, samples, first, part.num_sample)
                results.append(found or _emit(work, sequence, samples, path, prompt))
                right = [sample - first for sample in path[: len(results[-1].tokens)]]
                self._keep_states(work.request_id, part.num_sample, right)
                if at in branched and len(right) > 1:
                    drafts = [sample - 1 for sample in right[1:]]
                    kept += self._branches.keep(branched[at], sequence.row, drafts)
            except Exception as error:
                results.append(SliceResult(work.request_id, error=error_message(NOT_SAMPLED, error)))
            first += part.num_sample
        if kept:
            self.model.copy_blocks(kept)
        self._note_tokens(sequences, results)
        return results

    def _note_tokens(self, sequences: Sequence[_Sequence], results: Sequence[SliceResult]) -> None:
        """Keep what was emitted for the drafter."""
        if self.drafter is not None:
            for sequence, result in zip(sequences, results, strict=True):
                sequence.tokens += result.tokens

    def _keep_states(self, request_id: int, num_sample: int, right: Sequence[int]) -> None:
        """Forget the hidden states of a slice's wrong drafts: of its samples those in `right` count."""
        states = self._hidden.get(request_id)
        if states is None or len(right) == num_sample:
            return
        known = len(states) - num_sample
        if list(right) == list(range(len(right))):
            self._hidden[request_id] = states[: known + len(right)]
        else:
            self._hidden[request_id] = states[[*range(known), *(known + sample for sample in right)]]

    def _pack(
        self,
        slices: list[SeqSlice],
        sequences: list[_Sequence],
        branched: Mapping[int, Branched],
        selected: Sequence[int],
        hidden: Sequence[int],
    ) -> Step:
        """The step of `slices`, some of which are made up of several sequences of the batch."""
        if not branched:
            return pack(slices, [sequence.row for sequence in sequences], self._tables, selected, hidden)
        segments: list[tuple[SeqSlice, int]] = []
        writes: list[tuple[int, int, int]] = []
        first = 0
        for at, (work, sequence) in enumerate(zip(slices, sequences, strict=True)):
            laid = branched.get(at)
            segments += [(work, sequence.row)] if laid is None else laid.segments
            if laid is not None:
                writes += [(first + token, row, position) for token, row, position in laid.writes]
            first += len(work.tokens)
        copies = [copy for laid in branched.values() for copy in laid.copies]
        if copies:
            self.model.copy_blocks(copies)
        works, rows = zip(*segments, strict=True)
        return pack(works, rows, self._tables, selected, hidden, writes)

    def _decode(self, slices: list[SeqSlice], sequences: list[_Sequence]) -> list[SliceResult]:
        """The usual step, in which every sequence computes one token and gets the next: as `_run`, but faster."""
        every = range(len(slices))
        most = 2 * len(slices) if self._most_rows is None else self._most_rows
        wanted = self._needs_any_states and 2 * len(slices) <= most
        hidden = every if wanted else ()
        step = pack(slices, [sequence.row for sequence in sequences], self._tables, every, hidden)
        _, samples = self._forward(step, [sequence.next for sequence in sequences])
        states = self.model.hidden() if hidden else None
        self._hidden = (
            {} if states is None else {work.request_id: states[at : at + 1] for at, work in enumerate(slices)}
        )
        if samples.errors or samples.logprobs is not None or self._num_matchers:
            results = [
                _emitted(work, sequence, samples, at)
                for at, (work, sequence) in enumerate(zip(slices, sequences, strict=True))
            ]
            self._note_tokens(sequences, results)
            return results
        results, keeps = [], self.drafter is not None
        for work, sequence, token in zip(slices, sequences, samples.tokens, strict=True):
            tokens = (token,)
            try:
                sequence.state.extend(tokens)
            except Exception as error:
                results.append(SliceResult(work.request_id, error=error_message(NOT_SAMPLED, error)))
            else:
                results.append(SliceResult(work.request_id, tokens))
                if keeps:
                    sequence.tokens.append(token)
        return results

    def _draft(
        self, drafter: Drafter, slices: list[SeqSlice], results: list[SliceResult]
    ) -> list[SliceResult]:
        """The results with what may follow them. A drafter's exception costs the step's drafts, not its tokens. Of
        failures in a row the first, second, fourth and so on are logged: a fault may come back in every step."""
        drafted, places = [], []
        for at, (work, result) in enumerate(zip(slices, results, strict=True)):
            sequence = self._sequences[work.request_id]
            if result.error is None and result.pooled is None and sequence.pool is None:
                drafted.append(_drafted(work, sequence, result, self._hidden.get(work.request_id)))
                places.append(at)
        try:
            drafts = drafter.draft(drafted, sum(len(work.tokens) for work in slices))
        except Exception as error:
            self._failed_drafts += 1
            if not self._failed_drafts & (self._failed_drafts - 1):
                _log.error("drafting failed in %d steps in a row", self._failed_drafts, exc_info=error)
            return results
        self._failed_drafts = 0
        for at, (tokens, parents) in zip(places, drafts, strict=True):
            if tokens:
                results[at] = replace(results[at], draft=tokens, draft_parents=parents)
        return results

    @property
    def _needs_any_states(self) -> bool:
        """Whether the drafter reads hidden states of this step."""
        return self.drafter is not None and (self.drafter.needs_states or self.drafter.needs_hidden)

    def _state_counts(self, slices: Sequence[SeqSlice], rows: Sequence[Rows], others: int) -> list[int]:
        """Of how many of each slice's last tokens the drafter gets the states, in a step with so many `others`."""
        sampled = [part.num_sample for part in rows]
        tokens = sum(len(work.tokens) for work in slices)
        room = tokens if self._most_rows is None else self._most_rows - others
        if self.drafter is None or not self._needs_any_states or sum(sampled) > room:
            return [0] * len(slices)
        if not self.drafter.needs_states:
            return sampled
        counts, excess = [], tokens - room
        for work, least in zip(slices, sampled, strict=True):
            fewer = max(0, min(excess, len(work.tokens) - least))
            counts.append(len(work.tokens) - fewer)
            excess -= fewer
        return counts

    def _forward(
        self, step: Step, rows: list[SampleRow], at: list[int] | None = None
    ) -> tuple[Logits, SampleOutput]:
        """Logits [R, V] and the samples of `rows`, whose grammar masks are computed while the model runs."""
        if not self._num_matchers or self._grammars is None:
            logits = self.model.forward(step)
            return logits, self._faults.sample(logits, rows, at)
        pending = self._grammars.begin(rows)
        logits = self.model.forward(step)
        masks = None if pending is None else pending.result()
        samples = self._faults.sample(logits, rows, at, masks)
        if masks is not None and masks.errors:
            samples.errors.update(masks.errors)
            for row in masks.errors:
                samples.tokens[row] = NO_TOKEN
        return logits, samples

    def _score(
        self, logits: Logits, work: SeqSlice, sequence: _Sequence, part: Rows
    ) -> tuple[TokenLogprobs, ...]:
        k = sequence.state.params.prompt_logprobs
        if not part.num_prompt or k is None:
            return ()
        targets = sequence.prompt[work.start + 1 : work.start + 1 + part.num_prompt]
        return self.sampler.score(logits, part.first, targets, k)


def _drafted(
    work: SeqSlice, sequence: _Sequence, result: SliceResult, states: NDArray[np.float32] | None
) -> Drafted:
    state, emitted = sequence.state, len(result.tokens)
    room = work.room if emitted and not result.done else 0
    if state.params.max_tokens is not None:
        room = min(room, state.params.max_tokens - state.num_output - 1)
    rejected = work.num_draft - max(0, emitted - 1) if work.num_draft else 0
    return Drafted(
        request_id=work.request_id,
        row=sequence.row,
        work=work,
        tokens=sequence.tokens,
        computed=work.start + len(work.tokens) - rejected,
        found=sequence.found,
        room=max(0, room),
        accepted=work.num_draft - rejected,
        state=state,
        owner=sequence.owner,
        hidden=None if states is None or not emitted else states[-1],
        states=states,
    )


def _sample_rows(
    slices: list[SeqSlice], sequences: list[_Sequence], rows: list[Rows]
) -> tuple[list[SampleRow], list[int] | None]:
    """What is sampled, and from which rows of the logits; None for all of them."""
    sample_rows = []
    for work, sequence, part in zip(slices, sequences, rows, strict=True):
        sample_rows += [SampleRow(sequence.state, path) for path in assumed(work)[: part.num_sample]]
    at = None
    if any(part.num_prompt for part in rows):
        at = [row for part in rows for row in range(part.first + part.num_prompt, _end(part))]
    return sample_rows, at


def _last_tokens(slices: Sequence[SeqSlice], counts: Sequence[int]) -> list[int]:
    """So many of each slice's last tokens."""
    found: list[int] = []
    end = 0
    for work, count in zip(slices, counts, strict=True):
        end += len(work.tokens)
        found += range(end - count, end)
    return found


def _by_slice(
    slices: Sequence[SeqSlice], counts: Sequence[int], states: NDArray[np.float32]
) -> dict[int, NDArray[np.float32]]:
    """The hidden states of `_last_tokens` by slice."""
    found, at = {}, 0
    for work, count in zip(slices, counts, strict=True):
        found[work.request_id] = states[at : at + count]
        at += count
    return found


def _end(part: Rows) -> int:
    return part.first + part.num_prompt + part.num_sample


def _scored(work: SeqSlice, sequence: _Sequence) -> int:
    """How many positions of the slice are followed by a prompt token whose log-probability is requested."""
    return max(0, min(len(work.tokens), len(sequence.prompt) - 1 - work.start))


def _emitted(work: SeqSlice, sequence: _Sequence, samples: SampleOutput, at: int) -> SliceResult:
    try:
        return _emit(work, sequence, samples, [at], ())
    except Exception as error:
        return SliceResult(work.request_id, error=error_message(NOT_SAMPLED, error))


def _emit(
    work: SeqSlice,
    sequence: _Sequence,
    samples: SampleOutput,
    path: Sequence[int],
    prompt: tuple[TokenLogprobs, ...],
) -> SliceResult:
    """The tokens of one slice, those of the samples `path`. They end before one that could not be chosen: the next step
    fails with it, unless what came before has ended the sequence."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for at in path:
        token = samples.tokens[at]
        if token == NO_TOKEN and tokens:
            break
        if token == NO_TOKEN:
            return SliceResult(work.request_id, error=samples.errors[at])
        tokens.append(token)
        found = None if samples.logprobs is None else samples.logprobs[at]
        if found is not None:
            logprobs.append(found)
    matcher = sequence.state.matcher
    done = False
    if matcher is not None:
        count = matcher.advance(tokens)
        tokens, logprobs, done = tokens[:count], logprobs[:count], matcher.done and bool(tokens)
    sequence.state.extend(tokens)
    return SliceResult(
        work.request_id, tuple(tokens), logprobs=tuple(logprobs), prompt_logprobs=prompt, done=done
    )
