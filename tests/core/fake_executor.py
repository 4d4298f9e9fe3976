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
from tests.core.oracle import (
    Oracle,
    Sampling,
    hidden_state,
    pooled,
    propose,
    propose_tree,
    score,
    visible,
)

GARBAGE = (-1, 0)  # position and hidden state of an unwritten cell


def _parents(work: SeqSlice) -> tuple[int, ...]:
    return work.draft_parents or tuple(range(-1, work.num_draft - 1))


def _path(parents: Sequence[int], node: int) -> list[int]:
    return [] if node < 0 else [*_path(parents, parents[node]), node]


def _paths(tokens: Sequence[int], parents: Sequence[int]) -> set[tuple[int, ...]]:
    """The tokens that lead to each draft, its own included."""
    return {tuple(tokens[at] for at in _path(parents, node)) for node in range(len(tokens))}


@dataclass
class _Sequence:
    sampling: Sampling
    tenant: str
    num_prompt: int
    tokens: list[int]
    tables: list[Mirror]
    computed: int
    draft: tuple[int, ...] = ()  # proposed for the next slice
    parents: tuple[int, ...] = ()  # where that is a tree
    pooling: Pooling | None = None
    states: list[int] = field(default_factory=list)  # of the positions computed here, for an embedding


class FakeExecutor:
    """`tenant_of` names the cache salt of a sequence. `draft` gives how many good and bad draft tokens to propose
    after so many tokens, as a tree where `tree` says so; a slice's room cuts them. Sequences in `failing` fail in the
    next step. `recompute`: the core keeps no KV."""

    def __init__(
        self, groups: Sequence[KVGroupSpec], vocab: int, *, tenant_of: Callable[[int], str] = lambda number: "",
        draft: Callable[[int], tuple[int, int]] = lambda length: (0, 0), recompute: bool = False,
        tree: Callable[[int], bool] = lambda length: False,
    ) -> None:  # fmt: skip
        self.groups, self.vocab = tuple(groups), vocab
        self.tenant_of, self.draft, self.tree, self.recompute = tenant_of, draft, tree, recompute
        self.store: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in groups]
        self.sequences: dict[int, _Sequence] = {}
        self.samplings: dict[int, Sampling] = {}
        self.failing: set[int] = set()
        self.rejected = self.accepted = self.side_paths = self._last_step = 0
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
            for offset, token in enumerate(work.tokens[: work.known])
        ]
        states += self._compute_drafts(work, sequence, fails)
        self._store(work, states)
        if fails:
            self.failing.discard(work.request_id)
            return SliceResult(work.request_id, error="a planted failure")
        sequence.computed = work.start + work.span
        self._scribble(work, sequence)
        prompt_logprobs = ()
        if sequence.sampling.params.prompt_logprobs is not None:
            scored = range(work.start, min(sequence.computed, sequence.num_prompt - 1))
            prompt_logprobs = tuple(score(states[p - work.start], sequence.tokens[p + 1]) for p in scored)
        tokens, after = self._sample(work, sequence, states) if work.sample else ((), ())
        logprobs = ()
        if sequence.sampling.params.logprobs is not None:
            logprobs = tuple(score(states[at], token) for at, token in zip(after, tokens, strict=True))
        vector = None
        if sequence.pooling is not None:
            sequence.states += states
            if sequence.computed >= sequence.num_prompt:
                vector = pooled(sequence.pooling, sequence.states)
        return SliceResult(
            work.request_id, tokens, sequence.draft, sequence.parents, logprobs, prompt_logprobs, vector
        )

    def _compute_drafts(self, work: SeqSlice, sequence: _Sequence, junk: bool) -> list[int]:
        """The states of drafts. In the cache stand those of the first child of each, as a chain's would."""
        parents = _parents(work)
        base, found = work.start + work.known, list[int]()
        held: dict[int, int] = {}  # depth -> the draft whose state stands in the cache

        def put(node: int) -> None:
            path = _path(parents, node)
            for depth, one in enumerate(path):
                if held.get(depth) != one:
                    self._write(work.request_id, sequence, base + depth, found[one])
                    held[depth] = one
                    for deeper in [known for known in held if known > depth]:
                        del held[deeper]

        main, last = [], -1
        for node, parent in enumerate(parents):
            if parent == last:
                main.append(node)
                last = node
        for node, parent in enumerate(parents):
            if parent >= 0:
                put(parent)
            position = base + len(_path(parents, parent))
            found.append(
                self._compute(
                    work.request_id, sequence, position, work.tokens[work.known + node], write=True, junk=junk
                )
            )
            held[position - base] = node
        if main:
            put(main[-1])
        return found

    def _sample(
        self, work: SeqSlice, sequence: _Sequence, states: list[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens, and for each the index in the slice of the one that it follows."""
        count, parents = work.known, _parents(work)
        tokens: list[int] = []
        after = [count - 1]
        node: int | None = -1
        while node is not None:
            output_position = work.start + count + len(tokens) - sequence.num_prompt
            tokens.append(sequence.sampling.choose(states[after[-1]], output_position))
            children = [at for at, parent in enumerate(parents) if parent == node]
            node = next((at for at in children if work.tokens[count + at] == tokens[-1]), None)
            if node is not None:
                after.append(count + node)
        path = [at - count for at in after[1:]]
        for depth, at in enumerate(path):  # the path that was right takes the place of the main chain
            self._write(work.request_id, sequence, work.start + count + depth, states[count + at])
        self.side_paths += any(at != parents.index(parents[at]) for at in path)
        self.accepted += len(tokens) - 1
        self.rejected += work.num_draft - len(tokens) + 1
        sequence.computed = 0 if self.recompute else work.start + count + len(tokens) - 1
        sequence.tokens += tokens
        good, bad = self.draft(len(sequence.tokens))
        if good or bad:
            self._propose(work, sequence, good, bad)
        return tuple(tokens), tuple(after)

    def _propose(self, work: SeqSlice, sequence: _Sequence, good: int, bad: int) -> None:
        oracle = Oracle(self.groups, sequence.tenant, sequence.tokens)
        if self.tree(len(sequence.tokens)) and work.room:
            tokens, parents = propose_tree(
                oracle, sequence.sampling, sequence.num_prompt, good=min(good, work.room), wrong=2 * bad + 1
            )
            kept = [node for node in range(len(tokens)) if len(_path(parents, node)) <= work.room]
            sequence.draft = tuple(tokens[node] for node in kept)
            sequence.parents = tuple(kept.index(at) if (at := parents[node]) >= 0 else -1 for node in kept)
            return
        draft = propose(oracle, sequence.sampling, sequence.num_prompt, good=good, bad=bad)
        sequence.draft, sequence.parents = draft[: work.room], ()

    def _scribble(self, work: SeqSlice, sequence: _Sequence) -> None:
        """Write where a drafter may: after the slice's tokens, in blocks that no other sequence writes."""
        end = work.start + work.span
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
        end = work.start + work.known
        known = tuple(sequence.tokens[work.start : end])
        demand(bool(work.tokens), "an empty slice")
        demand(work.start == sequence.computed, f"starts at {work.start}, {sequence.computed} are computed")
        demand(work.tokens[: work.known] == known, f"tokens {work.tokens}, not {known}")
        proposed = _paths(sequence.draft, sequence.parents or tuple(range(-1, len(sequence.draft) - 1)))
        for path in _paths(work.tokens[work.known :], _parents(work)):
            demand(path in proposed, f"the draft {path} was not proposed")
        required = end == len(sequence.tokens) and sequence.sampling.params.samples
        demand(work.sample == required, "samples exactly after the last token")
        sequence.draft = sequence.parents = ()
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
        if write:
            self._write(number, sequence, position, hidden)
        return hidden

    def _write(self, number: int, sequence: _Sequence, position: int, hidden: int) -> None:
        for index, (group, table) in enumerate(zip(self.groups, sequence.tables, strict=True)):
            if group.is_state:
                continue
            block = table.block_of(position)
            writer = self._writers.setdefault((index, block), number)
            demand(writer == number, f"shared write: block {block} is written by {number} and {writer}")
            self.store[index][block, position % group.block_size] = (position, hidden)

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
