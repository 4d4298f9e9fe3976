"""An executor whose KV store is a dict: runs tests/core/oracle.py through block tables, and checks the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.types import (
    NOWHERE,
    KVGroupSpec,
    NewSequence,
    Pooling,
    SeqSlice,
    SliceResult,
    StepPlan,
    StepResult,
)
from tests.core.mirror import ContractError, Mirror, demand
from tests.core.oracle import Oracle, Sampling, hidden_state, pooled, propose, score, visible

GARBAGE = (-1, 0)  # position and hidden state of an unwritten cell


@dataclass
class _Sequence:
    sampling: Sampling
    tenant: str
    num_prompt: int
    tokens: list[int]
    tables: list[Mirror]
    computed: int
    draft: tuple[int, ...] = ()  # proposed for the next slice
    pooling: Pooling | None = None
    states: list[int] = field(default_factory=list)  # of the positions computed here, for an embedding


class FakeExecutor:
    """`tenant_of` names the cache salt of a sequence. `draft` gives how many good and bad draft tokens to propose
    after so many tokens; a slice's room cuts them. Sequences in `failing` fail in the next step. `recompute`: the core
    keeps no KV."""

    def __init__(
        self, groups: Sequence[KVGroupSpec], vocab: int, *, tenant_of: Callable[[int], str] = lambda number: "",
        draft: Callable[[int], tuple[int, int]] = lambda length: (0, 0), recompute: bool = False,
    ) -> None:  # fmt: skip
        self.groups, self.vocab = tuple(groups), vocab
        self.tenant_of, self.draft, self.recompute = tenant_of, draft, recompute
        self.store: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in groups]
        self.sequences: dict[int, _Sequence] = {}
        self.samplings: dict[int, Sampling] = {}
        self.failing: set[int] = set()
        self.rejected = self.accepted = self._last_step = 0
        self._writers: dict[tuple[int, int], int] = {}
        self._carried: dict[
            int, tuple[int, ...]
        ] = {}  # the state of the slice that runs, in each group of states

    def execute(self, plan: StepPlan) -> StepResult:
        demand(plan.step_id > self._last_step, f"step {plan.step_id} follows {self._last_step}")
        demand(len({w.request_id for w in plan.slices}) == len(plan.slices), "a sequence has two slices")
        self._last_step = plan.step_id
        for number in plan.released:
            demand(self.sequences.pop(number, None) is not None, f"{number} is released but not held")
        for copy in plan.copies:
            for offset in range(self.groups[copy.group].block_size):
                store = self.store[copy.group]
                store[copy.target, offset] = store.get((copy.source, offset), GARBAGE)
        self._writers.clear()
        # One after the other, so that no slice can depend on a later one of the same step.
        results = tuple(self._run(work) for work in plan.slices)
        return StepResult(plan.step_id, results if plan.step_id % 2 else results[::-1])

    def _run(self, work: SeqSlice) -> SliceResult:
        sequence = self._update(work)
        demand(
            0 <= work.num_stored <= len(work.tokens), f"{work.num_stored} stored of {len(work.tokens)} tokens"
        )
        fails = work.request_id in self.failing
        self._carried = self._load(work)
        states = [
            self._compute(
                work.request_id,
                sequence,
                work.start + offset,
                token,
                write=offset >= work.num_stored,
                junk=fails,
            )
            for offset, token in enumerate(work.tokens)
        ]
        self._store(work, states)
        if fails:
            self.failing.discard(work.request_id)
            return SliceResult(work.request_id, error="a planted failure")
        sequence.computed = work.start + len(work.tokens)
        self._scribble(work, sequence)
        prompt_logprobs = ()
        if sequence.sampling.params.prompt_logprobs is not None:
            scored = range(work.start, min(sequence.computed, sequence.num_prompt - 1))
            prompt_logprobs = tuple(score(states[p - work.start], sequence.tokens[p + 1]) for p in scored)
        tokens = self._sample(work, sequence, states) if work.sample else ()
        logprobs = ()
        if sequence.sampling.params.logprobs is not None:
            first = len(states) - work.num_draft - 1
            logprobs = tuple(score(states[first + at], token) for at, token in enumerate(tokens))
        vector = None
        if sequence.pooling is not None:
            sequence.states += states
            if sequence.computed >= sequence.num_prompt:
                vector = pooled(sequence.pooling, sequence.states)
        return SliceResult(work.request_id, tokens, sequence.draft, logprobs, prompt_logprobs, vector)

    def _sample(self, work: SeqSlice, sequence: _Sequence, states: list[int]) -> tuple[int, ...]:
        count = len(work.tokens) - work.num_draft  # tokens that are no drafts
        draft, tokens = work.tokens[count:], []
        for index in range(work.num_draft + 1):
            output_position = work.start + count + index - sequence.num_prompt
            tokens.append(sequence.sampling.choose(states[count - 1 + index], output_position))
            if index < work.num_draft and tokens[-1] != draft[index]:
                break
        self.accepted += len(tokens) - 1
        self.rejected += work.num_draft - len(tokens) + 1
        sequence.computed = 0 if self.recompute else work.start + count + len(tokens) - 1
        sequence.tokens += tokens
        good, bad = self.draft(len(sequence.tokens))
        if good or bad:
            oracle = Oracle(self.groups, sequence.tenant, sequence.tokens)
            draft = propose(oracle, sequence.sampling, sequence.num_prompt, good=good, bad=bad)
            sequence.draft = draft[: work.room]
        return tuple(tokens)

    def _scribble(self, work: SeqSlice, sequence: _Sequence) -> None:
        """Write where a drafter may: after the slice's tokens, in blocks that no other sequence writes."""
        end = work.start + len(work.tokens)
        for index, (group, table) in enumerate(zip(self.groups, sequence.tables, strict=True)):
            for position in () if group.is_state else range(end, end + work.room):
                block = table.block_of(position)
                writer = self._writers.setdefault((index, block), work.request_id)
                demand(writer == work.request_id, f"shared write: block {block} of {writer} holds drafts")
                self.store[index][block, position % group.block_size] = GARBAGE

    def _update(self, work: SeqSlice) -> _Sequence:
        demand((work.new is None) == (work.request_id in self.sequences), f"{work.request_id}: new or known?")
        if work.new is not None:
            self.sequences[work.request_id] = self._start(work.request_id, work.new, work.start)
        sequence = self.sequences[work.request_id]
        for mirror, update in zip(sequence.tables, work.tables, strict=True):
            if update is not None:
                mirror.apply(update)
        end = work.start + len(work.tokens) - work.num_draft
        known = tuple(sequence.tokens[work.start : end])
        demand(bool(work.tokens), "an empty slice")
        demand(work.start == sequence.computed, f"starts at {work.start}, {sequence.computed} are computed")
        demand(work.tokens == known + sequence.draft[: work.num_draft], f"tokens {work.tokens}, not {known}")
        required = end == len(sequence.tokens) and sequence.sampling.params.samples
        demand(work.sample == required, "samples exactly after the last token")
        sequence.draft = ()
        return sequence

    def _start(self, number: int, new: NewSequence, start: int) -> _Sequence:
        sampling = Sampling(new.params, new.seed, new.stop_ids, self.vocab)
        demand(self.samplings.setdefault(number, sampling) == sampling, "a sequence came back changed")
        tables = [Mirror(group) for group in self.groups]
        return _Sequence(
            sampling,
            self.tenant_of(number),
            new.num_prompt,
            list(new.tokens),
            tables,
            start,
            pooling=new.pooling,
        )

    def _compute(
        self, number: int, sequence: _Sequence, position: int, token: int, *, write: bool, junk: bool
    ) -> int:
        """The hidden state at a position, stored as its KV unless it is there already; `junk` corrupts it."""
        seen = tuple(
            self._carried[index]
            if group.is_state
            else tuple(self._read(index, sequence.tables[index], at) for at in visible(group, position))
            for index, group in enumerate(self.groups)
        )
        hidden = -1 if junk else hidden_state(sequence.tenant, token, position, seen)
        for index, (group, table) in enumerate(zip(self.groups, sequence.tables, strict=True)):
            if group.is_state:
                self._carried[index] = (hidden,)
                continue
            if not write:
                self._read(index, table, position)
                continue
            block = table.block_of(position)
            writer = self._writers.setdefault((index, block), number)
            demand(writer == number, f"shared write: block {block} is written by {number} and {writer}")
            self.store[index][block, position % group.block_size] = (position, hidden)
        return hidden

    def _load(self, work: SeqSlice) -> dict[int, tuple[int, ...]]:
        """The state of each group with states before the slice: that after the position before it, or nothing."""
        found = {}
        for index, group in enumerate(self.groups):
            if not group.is_state:
                continue
            moves = work.states[index]
            demand(moves is not None and (moves.source == NOWHERE) == (work.start == 0), f"state: {moves}")
            assert moves is not None
            cell = self.store[index].get((moves.source, 0), GARBAGE) if work.start else None
            demand(cell is None or cell[0] == work.start - 1, f"stale state: {cell} before {work.start}")
            found[index] = () if cell is None else (cell[1],)
        return found

    def _store(self, work: SeqSlice, states: list[int]) -> None:
        for index, group in enumerate(self.groups):
            if group.is_state:
                moves = work.states[index]
                assert moves is not None
                for count, slot in moves.writes:
                    self.store[index][slot, 0] = (work.start + count - 1, states[count - 1])

    def _read(self, index: int, table: Mirror, position: int) -> int:
        cell = self.store[index].get((table.block_of(position), position % table.group.block_size), GARBAGE)
        if cell[0] != position:
            raise ContractError(f"stale KV: expected position {position}, found {cell[0]}")
        return cell[1]
