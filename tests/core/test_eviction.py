"""Eviction in the scheduler: when, in which slices, and what tables hold then. The executor moves tokens in a dict."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from headrace.core.engine import Engine
from headrace.core.eviction import Eviction
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.step_budget import StepBudget, StepLoad
from headrace.core.types import (
    KVGroupSpec,
    NewRequest,
    Retention,
    SeqSlice,
    SliceResult,
    StepPlan,
    StepResult,
)

SIZES = Eviction(budget=16, window=4, sinks=2, recent=4, interval=6)
FULL = KVGroupSpec("full", 14, 4)
WINDOW = KVGroupSpec("window", 12, 4, retention=Retention.WINDOW, window=8)


def test_points_depend_on_the_lengths_alone() -> None:
    assert [SIZES.next_point(40, at) for at in (0, 39, 40, 45, 46)] == [40, 40, 46, 46, 52]
    assert [SIZES.next_point(10, at) for at in (0, 21, 22, 27, 28)] == [22, 22, 28, 28, 34]
    assert SIZES.next_point(16, 0) == 22  # within the budget
    assert (SIZES.reusable(40), SIZES.reusable(10)) == (36, 18)


@pytest.mark.parametrize("prompt", [3, 16, 17, 40])
def test_slices_end_at_points_and_observe_the_window_once(prompt: int) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        at, observed = 0, list[int]()
        while at < 60:
            count = SIZES.grant(prompt, at, rng.randint(1, 30))
            if not count:
                continue
            rows, fresh = SIZES.observed(prompt, at, at + count)
            assert at + count <= SIZES.next_point(prompt, at)
            assert fresh == (at <= SIZES.next_point(prompt, at) - SIZES.window) or not rows
            if at < prompt < at + count + SIZES.window and prompt > SIZES.budget and rows:
                assert rows == SIZES.window  # those of a prompt come together
            observed += range(at + count - rows, at + count)
            at += count
        points = [p for p in range(1, at + 1) if p == SIZES.next_point(prompt, p - 1)]
        assert points
        due = [row for point in points for row in range(point - SIZES.window, point)]
        assert observed[: len(due)] == due


@dataclass
class Mover:
    """Keeps in each cell which position of which tokens lies there, and checks it before every slice."""

    groups: tuple[KVGroupSpec, ...]
    cells: list[dict[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    tables: dict[int, list[list[int]]] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    held: dict[int, list[int]] = field(default_factory=dict)  # positions, in the order of their places
    moves: list[tuple[int, int]] = field(default_factory=list)  # (sequence, length)
    most: Counter[int] = field(default_factory=Counter)
    fails: bool = False

    def execute(self, plan: StepPlan) -> StepResult:
        self.cells = self.cells or [{} for _ in self.groups]
        for number in plan.released:
            del self.tables[number], self.tokens[number], self.held[number]
        for copy in plan.copies:
            for at in range(4):
                self.cells[copy.group][copy.target, at] = self.cells[copy.group].get(
                    (copy.source, at), (-1, -1)
                )
        return StepResult(plan.step_id, tuple(self._run(work) for work in plan.slices))

    def _run(self, work: SeqSlice) -> SliceResult:
        number = work.request_id
        if work.new is not None:
            self.tables[number] = [[] for _ in self.groups]
            self.tokens[number] = list(work.new.tokens)
            self.held[number] = list(range(work.start + work.num_stored))
        for group, update in enumerate(work.tables):
            if update is not None and self.groups[group].window is None:
                live = self.tables[number][group]
                del live[update.first :]
                live += update.blocks
                assert update.evicted == work.evicted
        held = self.held[number]
        assert len(held) - work.num_stored + work.evicted == work.start, "evicted tokens are counted"
        for offset in range(work.num_stored, len(work.tokens)):
            position = work.start + offset
            self.cells[0][self._cell(number, len(held))] = (position, work.tokens[offset])
            held.append(position)
        for place, position in enumerate(held):
            assert self.cells[0][self._cell(number, place)] == (position, self.tokens[number][position])
        self._move(work)
        self.most[number] = max(self.most[number], len(self.held[number]))
        if not work.sample:
            return SliceResult(number)
        token = hash((tuple(self.tokens[number]), tuple(self.held[number]))) % 50
        self.tokens[number].append(token)
        return SliceResult(number, (token,))

    def _cell(self, number: int, place: int) -> tuple[int, int]:
        return self.tables[number][0][place // 4], place % 4

    def _move(self, work: SeqSlice) -> None:
        number, held = work.request_id, self.held[work.request_id]
        if work.observation is None or not work.observation.targets:
            return
        targets = work.observation.targets[0]
        assert len(targets) == -(-SIZES.budget // 4) and not set(targets) & set(self.tables[number][0])
        assert all(not blocks for blocks in work.observation.targets[1:])
        middle = held[SIZES.sinks : -SIZES.recent]
        rng = random.Random(str(held))
        chosen = sorted(rng.sample(middle, SIZES.budget - SIZES.sinks - SIZES.recent))
        kept = [*held[: SIZES.sinks], *chosen, *held[-SIZES.recent :]]
        for place, position in enumerate(kept):
            self.cells[0][targets[place // 4], place % 4] = (position, self.tokens[number][position])
        self.held[number] = kept
        self.moves.append((number, work.start + len(work.tokens)))


class Tiny(StepBudget):
    """Prompts get one token of each step while others decode."""

    def tokens(self, load: StepLoad) -> int:
        return 1

    def observe(self, plan: StepPlan, spent_s: float) -> None:
        pass


def drive(
    groups: tuple[KVGroupSpec, ...], requests: list[NewRequest], *, aborts: dict[int, str] | None = None,
    budget: StepBudget | None = None, **options: object,
) -> tuple[Engine, Mover, dict[tuple[str, int], tuple[int, ...]]]:  # fmt: skip
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 12, **options}
    config = SchedulerConfig(max_model_len=40, vocab_size=50, eviction=SIZES, **sizes)  # type: ignore[arg-type]
    engine, mover = Engine(config, groups, step_budget=budget), Mover(groups)
    queue, found, step = list(requests), dict[tuple[str, int], tuple[int, ...]](), 0
    while queue or engine.has_work:
        if queue and step % 3 == 0:
            engine.add(queue.pop(0), float(step))
        if aborts and step in aborts:
            engine.abort(aborts[step], float(step))
        for output in engine.finish(mover.execute(engine.begin(float(step))), float(step)):
            assert output.error is None
            key = (output.request_id, output.index)
            found[key] = found.get(key, ()) + output.tokens
        step += 1
        assert step < 2000
    stats = engine.stats()
    assert stats.free_blocks == stats.total_blocks
    return engine, mover, found


def requests_of(count: int, seed: int, most: int = 38) -> list[NewRequest]:
    rng = random.Random(seed)
    prefix = [rng.randrange(50) for _ in range(20)]
    made = []
    for index in range(count):
        shared = prefix if index % 3 else []
        prompt = (*shared, *(rng.randrange(50) for _ in range(rng.randint(1, most - 20))))
        params = SamplingParams(max_tokens=rng.randint(1, 24), n=1 + index % 2, ignore_eos=True)
        made.append(NewRequest(f"r{index}", prompt, params))
    return made


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)], ids=["full", "with a window"])
def test_tables_hold_what_stays(groups: tuple[KVGroupSpec, ...]) -> None:
    """The same tokens alone and in a batch, with preemption, prefix hits and shared prompts."""
    happened: Counter[str] = Counter()
    for seed in range(8):
        requests = requests_of(8, seed)
        engine, _, found = drive(groups, requests)
        stats = engine.stats()
        assert stats.cache is not None
        happened += Counter(
            preempted=stats.scheduler.preemptions, evicted=stats.scheduler.evicted_tokens, hits=stats.cache.hits,
            forks=stats.scheduler.forks,
        )  # fmt: skip
        wide = tuple(KVGroupSpec(g.name, 200, 4, retention=g.retention, window=g.window) for g in groups)
        for request in requests:
            _, _, alone = drive(wide, [request], max_num_batched_tokens=200)
            assert {key: found[key] for key in alone} == alone
    assert min(happened[name] for name in ("preempted", "evicted", "hits", "forks")) > 0


def test_aborts_free_what_was_to_be_moved() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        aborts = {rng.randrange(40): f"r{index}" for index in range(8)}
        drive((FULL,), requests_of(8, seed), aborts=aborts)


def test_a_prompt_joins_although_a_step_budget_leaves_it_less_than_a_window() -> None:
    _, mover, found = drive((KVGroupSpec("full", 60, 4),), requests_of(6, 3), budget=Tiny())
    assert mover.moves and all(found.values())


def test_a_prompt_ends_while_all_other_sequences_decode() -> None:
    """A step of this size has room for one token of each other sequence and a window: `plan.fit.Fit.busy_tokens`."""
    streams = [
        NewRequest(f"r{i}", (i,) * 4, SamplingParams(max_tokens=34, ignore_eos=True)) for i in range(3)
    ]
    late = NewRequest("late", (9,) * 30, SamplingParams(max_tokens=1, ignore_eos=True))
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=3 + SIZES.window,
        max_model_len=40,
        vocab_size=50,
        eviction=SIZES,
    )
    engine, mover = Engine(config, (KVGroupSpec("full", 60, 4),)), Mover((KVGroupSpec("full", 60, 4),))
    for request in streams:
        engine.add(request, 0.0)
    ended: list[str] = []
    for step in range(60):
        if step == 4:
            engine.add(late, 0.0)
        outputs = engine.finish(mover.execute(engine.begin(0.0)), 0.0)
        ended += [output.request_id for output in outputs if output.finish_reason is not None]
    assert len(ended) == 4 and ended[0] == "late"


@pytest.mark.parametrize(("free", "late"), [(4, 0), (9, 0), (9, 1)])
def test_who_lacks_blocks_while_others_evict_waits_a_step(free: int, late: int) -> None:
    """Four sequences reach their points in the same step, and there is room for one or two of them to move tokens at a
    time. None is preempted, and none has to yield to a fifth that joins."""
    point = SIZES.next_point(10, 0)
    params = SamplingParams(max_tokens=3 * SIZES.interval + 10, ignore_eos=True)
    requests = [NewRequest(f"r{i}", (i,) * 10, params) for i in range(4 + late)]
    group = KVGroupSpec("full", 4 * -(-point // 4) + free, 4)
    config = SchedulerConfig(
        max_num_seqs=5, max_num_batched_tokens=64, max_model_len=60, vocab_size=50, eviction=SIZES
    )
    engine, mover, tokens, steps = Engine(config, (group,)), Mover((group,)), Counter[str](), 0
    for request in requests[:4]:
        engine.add(request, 0.0)
    while engine.has_work:
        if steps == 3:
            for request in requests[4:]:
                engine.add(request, 0.0)
        for output in engine.finish(mover.execute(engine.begin(0.0)), 0.0):
            tokens[output.request_id] += len(output.tokens)
        steps += 1
        assert steps < 400
    assert engine.stats().scheduler.preemptions == 0
    assert set(tokens.values()) == {params.max_tokens} and len(tokens) == 4 + late
    first = [number for number, length in mover.moves if length == point]
    assert len(first) == 4 + late and len(mover.moves) > 10


def test_the_pool_keeps_room_for_what_stays() -> None:
    """The longest prompt that is let in can be evicted, alone in the pool."""
    group = KVGroupSpec("full", 14, 4)
    engine, mover, found = drive((group,), [NewRequest("a", (1,) * 39, SamplingParams(max_tokens=1))])
    assert (
        engine.scheduler.kv.longest_sequence() == (14 - 4) * 4
        and len(found["a", 0]) == 1
        and mover.moves == [(0, 39)]
    )


def test_without_points_nothing_changes() -> None:
    requests = requests_of(6, 1, most=21)
    few = [NewRequest(r.request_id, r.prompt[:9], SamplingParams(max_tokens=12)) for r in requests]
    engine, mover, _ = drive((FULL,), few)
    assert not mover.moves and engine.stats().scheduler.evicted_tokens == 0


def test_embeddings_and_scores_evict_nothing() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    engine = Engine(
        SchedulerConfig(
            max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64, vocab_size=50, eviction=SIZES
        ),
        (FULL,),
    )
    engine.add(NewRequest("a", tuple(range(30)), params), 0.0)
    assert all(work.observation is None for work in engine.begin(0.0).slices)
