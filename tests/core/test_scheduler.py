"""The tokens that each sequence computes in a step: budget, chunks, batching, preemption.

Every step runs all checks of the driver.
"""

from __future__ import annotations

import pytest

from headrace.core.admission import Admission
from headrace.core.kv_manager import KVManager
from headrace.core.policy import Batching, Order, Victim
from headrace.core.prefix_cache import Hit
from headrace.core.request import Request
from headrace.core.types import FinishReason
from tests.core.build import driver, full, granted, new, sinks, window, work
from tests.core.random_runs import MOVES, random_run


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = driver(max_num_batched_tokens=5)
    engine.add(new("a", 13, max_tokens=3))
    slices = []
    while engine.engine.has_work:
        slices += [(part.start, len(part.tokens), part.sample) for part in engine.step().slices]
    assert slices == [(0, 5, False), (5, 5, False), (10, 3, True), (13, 1, True), (14, 1, True)]


def test_running_requests_come_first_and_newcomers_fill_the_budget() -> None:
    engine = driver(max_num_batched_tokens=8)
    engine.add(new("a", 6, max_tokens=9))
    engine.add(new("b", 9, max_tokens=9))
    assert granted(engine, engine.step()) == {"a": 6, "b": 2}
    assert granted(engine, engine.step()) == {"a": 1, "b": 7}
    engine.add(new("c", 20, max_tokens=9))
    assert granted(engine, engine.step()) == {"a": 1, "b": 1, "c": 6}
    assert granted(engine, engine.step()) == {"a": 1, "b": 1, "c": 6}
    engine.drain()


def test_a_request_that_gets_no_budget_keeps_its_place() -> None:
    engine = driver(max_num_batched_tokens=2)
    for name in "abcd":
        engine.add(new(name, 1, max_tokens=5))
    assert granted(engine, engine.step()) == {"a": 1, "b": 1}
    while engine.tracks["a", 0].reason is None:
        assert set(granted(engine, engine.step())) == {"a", "b"}
    assert granted(engine, engine.step()) == {"c": 1, "d": 1}
    engine.drain()


def test_at_most_max_num_seqs_run() -> None:
    engine = driver(max_num_seqs=3)
    for number in range(9):
        engine.add(new(f"r{number}", 4, max_tokens=2 + number % 3))
    most = 0
    while engine.engine.has_work:
        engine.step()
        most = max(most, engine.engine.stats().running)
    assert most == 3


def test_whole_prompts_wait_for_a_step_that_has_room() -> None:
    engine = driver(max_num_batched_tokens=16, chunked_prefill=False)
    engine.add(new("a", 10, max_tokens=3))
    engine.add(new("b", 10, max_tokens=3))
    engine.add(new("c", 5, max_tokens=3))
    assert granted(engine, engine.step()) == {"a": 10}  # c does not overtake b
    assert granted(engine, engine.step()) == {"a": 1, "b": 10, "c": 5}
    engine.drain()


def test_a_prompt_longer_than_the_budget_takes_whole_budgets() -> None:
    engine = driver(max_num_batched_tokens=16, chunked_prefill=False)
    engine.add(new("a", 40, max_tokens=1))
    engine.add(new("b", 3, max_tokens=1))
    grants = []
    while engine.engine.has_work:
        grants.append(granted(engine, engine.step()))
    assert grants[:3] == [{"a": 16}, {"a": 16}, {"a": 8, "b": 3}]


def test_whole_prompts_do_not_starve_a_long_one() -> None:
    engine = driver(max_num_batched_tokens=8, chunked_prefill=False, max_num_seqs=4)
    for number in range(6):
        engine.add(new(f"short{number}", 3, max_tokens=6))
    engine.add(new("long", 30, max_tokens=2))
    for number in range(6, 12):
        engine.add(new(f"short{number}", 3, max_tokens=6))
    while engine.tracks["long", 0].reason is None:
        engine.step()
    assert engine.tracks["short7", 0].reason is None
    engine.drain()


@pytest.mark.parametrize("victim", list(Victim))
def test_preempted_requests_resume_with_the_same_tokens(victim: Victim) -> None:
    """The driver compares every token with the oracle; here only that it really happened."""
    engine = driver(full(9), victim=victim, caching=False)
    for name in "abc":
        engine.add(new(name, 8, max_tokens=16, logprobs=0))
    engine.drain()
    assert engine.events["preemptions"] >= 2
    assert all(len(track.tokens) == 16 for track in engine.tracks.values())


def test_a_preempted_prefix_may_be_found_again() -> None:
    engine = driver(full(9))
    for name in "abc":
        engine.add(new(name, 8, max_tokens=16))
    engine.drain()
    assert engine.events["preemptions"] > 0 and engine.events["hits"] > 0


def test_the_first_is_never_the_victim() -> None:
    engine = driver(full(8), caching=False)
    for name in "abc":
        engine.add(new(name, 8, max_tokens=20))
    while engine.tracks["a", 0].reason is None:
        assert "a" in granted(engine, engine.step())
    assert engine.events["preemptions"] > 0
    engine.drain()


def test_priorities_decide_admission_and_preemption() -> None:
    engine = driver(full(9), order=Order.PRIORITY, max_num_seqs=3, caching=False)
    engine.add(new("late", 8, priority=5, max_tokens=16))
    engine.step()
    engine.add(new("soon", 8, priority=1, max_tokens=16))
    engine.add(new("next", 8, priority=0, max_tokens=16))
    assert list(granted(engine, engine.step())) == ["late", "next", "soon"]
    while not engine.events["preemptions"]:
        plan = engine.step()
    assert list(granted(engine, plan)) == ["next", "soon"]
    engine.drain()


def test_equal_priorities_keep_the_order_of_arrival() -> None:
    engine = driver(order=Order.PRIORITY, max_num_seqs=1)
    for name in "bdac":
        engine.add(new(name, 4, priority=3, max_tokens=1))
    order = []
    while engine.engine.has_work:
        order += granted(engine, engine.step())
    assert order == ["b", "d", "a", "c"]


def test_a_static_batch_admits_none_until_all_have_ended() -> None:
    engine = driver(batching=Batching.STATIC, batch_size=2)
    for name, length in (("a", 2), ("b", 6), ("c", 1), ("d", 1)):
        engine.add(new(name, 4, max_tokens=length))
    together = []
    while engine.engine.has_work:
        together.append(set(granted(engine, engine.step())))
    assert together[:6] == [{"a", "b"}, {"a", "b"}, {"b"}, {"b"}, {"b"}, {"b"}]
    assert together[6] == {"c", "d"}


def test_a_static_batch_fills_over_several_steps_where_the_budget_is_short() -> None:
    engine = driver(batching=Batching.STATIC, batch_size=3, max_num_batched_tokens=6)
    for name in "abcd":
        engine.add(new(name, 5, max_tokens=8))
    seen: set[str] = set()
    for _ in range(4):
        seen |= set(granted(engine, engine.step()))
    assert seen == {"a", "b", "c"}
    engine.drain()


def test_a_dynamic_batch_waits_up_to_its_time() -> None:
    engine = driver(batching=Batching.DYNAMIC, batch_size=2, batch_wait_s=1.0)
    engine.add(new("a", 4, max_tokens=2))
    engine.advance(0.25)
    plan = engine.step()
    assert plan.empty and plan.wait_until == 1.0
    engine.advance(0.5)
    assert engine.step().wait_until == 1.0
    engine.advance(0.25)
    plan = engine.step()
    assert granted(engine, plan) == {"a": 4} and plan.wait_until is None
    engine.drain()


def test_a_dynamic_batch_starts_at_once_when_full() -> None:
    engine = driver(batching=Batching.DYNAMIC, batch_size=2, batch_wait_s=1.0)
    for name in "abc":
        engine.add(new(name, 4, max_tokens=2))
    assert granted(engine, engine.step()) == {"a": 4, "b": 4}
    engine.step()
    plan = engine.step()  # c's turn, but alone it waits: since its arrival
    assert plan.wait_until == 1.0
    engine.drain()


def test_a_dynamic_batch_starts_by_tokens() -> None:
    engine = driver(batching=Batching.DYNAMIC, batch_size=9, batch_wait_s=1.0, batch_max_tokens=20)
    engine.add(new("a", 19, max_tokens=2))
    assert engine.step().wait_until == 1.0
    engine.add(new("b", 1, max_tokens=2))
    assert granted(engine, engine.step()) == {"a": 19, "b": 1}
    engine.drain()


def test_a_batch_is_no_larger_than_memory_allows() -> None:
    engine = driver(full(6), batching=Batching.STATIC, batch_size=4, caching=False)
    for name in "abcd":
        engine.add(new(name, 9, max_tokens=3))
    assert set(granted(engine, engine.step())) == {"a"}
    engine.add(new("small", 1, max_tokens=3))
    assert "small" not in granted(engine, engine.step())
    engine.drain()


def test_memory_freed_by_a_batch_admits_none() -> None:
    engine = driver(full(10), batching=Batching.STATIC, batch_size=3, caching=False)
    for name, count in (("a", 2), ("b", 9), ("c", 2)):
        engine.add(new(name, 13, max_tokens=count))
    assert set(granted(engine, engine.step())) == {"a", "b"}
    while engine.tracks["b", 0].reason is None:
        assert "c" not in granted(engine, engine.step())
    assert engine.tracks["a", 0].reason is not None
    engine.drain()


def test_a_long_prompt_joins_where_windows_bound_what_it_holds() -> None:
    engine = driver(window(8, blocks=12), max_model_len=None, max_num_batched_tokens=16)
    engine.add(new("a", 8, max_tokens=30))
    engine.step()
    engine.add(new("b", 200, max_tokens=3))
    assert granted(engine, engine.step()) == {"a": 1, "b": 15}
    engine.drain()


def test_an_admission_leaves_a_spare_block_for_each_running_sequence() -> None:
    engine = driver(full(6), caching=False)
    engine.add(new("a", 12, max_tokens=8))
    engine.step()
    engine.add(new("b", 12, max_tokens=8))  # would fit in the three blocks left, to be preempted at once
    assert granted(engine, engine.step()) == {"a": 1}
    engine.drain()
    assert engine.events["preemptions"] == 0


@pytest.mark.parametrize(
    ("chunk", "group"),
    [
        (7, sinks(5, 9)), (64, window(9)),
        *(pytest.param(chunk, group, marks=pytest.mark.long) for chunk, group in (
            (1, window(9)), (1, sinks(5, 9)), (7, window(9)), (64, sinks(5, 9)),
        )),
    ],
)  # fmt: skip
def test_a_stream_far_beyond_the_models_length_holds_bounded_memory(group, chunk) -> None:  # type: ignore[no-untyped-def]
    engine = driver(group, max_model_len=None, max_num_batched_tokens=chunk)
    assert engine.engine.scheduler.limit is None
    engine.add(new("endless", 40, max_tokens=600))
    most = 0
    while engine.engine.has_work:
        plan = engine.step()
        if plan.slices and plan.slices[0].start > 40:
            held = engine.engine.kv_usage().held_blocks
            most = max(most, held)
    track = engine.tracks["endless", 0]
    assert len(track.tokens) == 600 and track.reason is FinishReason.LENGTH
    assert most <= group.reach_blocks


def test_a_stream_in_a_hybrid_model_ends_with_the_full_group() -> None:
    engine = driver(full(8), window(5, blocks=4), max_model_len=None)
    assert engine.engine.scheduler.limit == 32
    engine.add(new("a", 10, max_tokens=None))
    engine.drain()
    assert len(engine.tracks["a", 0].tokens) == 22


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_pools_too_small_for_their_window_still_serve(order: Order, blocks: int) -> None:
    engine = driver(sinks(5, 16, blocks=blocks, size=8), order=order, max_model_len=None)
    for name in "abc":
        engine.add(new(name, 5, max_tokens=60))
    engine.drain()
    count = {2: 16 - 5, 3: 24 - 5, 4: 60}[blocks]  # four are enough for the window to slide
    assert all(len(track.tokens) == count for track in engine.tracks.values())


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("draft", [(0, 0), (2, 1)])
def test_without_a_cache_everything_is_computed_again(chunked: bool, draft: tuple[int, int]) -> None:
    engine = driver(full(12), kv_cache=False, max_num_batched_tokens=9, chunked_prefill=chunked, draft=draft)
    engine.add(new("a", 11, max_tokens=6, prompt_logprobs=0))
    engine.add(new("b", 7, max_tokens=9, n=2))
    computed = 0
    while engine.engine.has_work:
        plan = engine.step()
        computed += granted(engine, plan).get("a", 0)
        assert all(part.start == 0 for part in plan.slices if part.sample and len(part.tokens) > 9)
    assert computed >= sum(range(11, 17)) if draft == (0, 0) else computed > 17
    assert engine.engine.stats().cache is None and engine.events["forks"] == 0


def test_a_request_is_described_only_when_it_starts_or_restarts() -> None:
    engine = driver(full(6), caching=False)
    for name in "ab":
        engine.add(new(name, 8, max_tokens=10))
    described = {"a": 0, "b": 0}
    while engine.engine.has_work:
        for name, part in work(engine, engine.step()).items():
            described[name] += part.new is not None
    assert described == {"a": 1, "b": 1 + engine.events["preemptions"]}
    assert engine.events["preemptions"] > 0


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of requests that were looked up in the prefix cache, in order."""
    names: list[str] = []
    original = KVManager.lookup

    def lookup(self: KVManager, request: Request) -> Hit | None:
        names.append(request.name)
        return original(self, request)

    monkeypatch.setattr(KVManager, "lookup", lookup)
    return names


def test_the_head_of_the_queue_is_looked_up_once_while_it_waits_for_blocks(lookups: list[str]) -> None:
    engine = driver(full(16))
    engine.add(new("a", 30, max_tokens=28, ignore_eos=True))
    engine.add(new("b", 30, max_tokens=4))
    for _ in range(20):
        assert list(granted(engine, engine.step())) == ["a"]
    assert lookups.count("b") == 1
    engine.drain()
    assert lookups.count("b") == 2 and lookups.count("a") == 1


def test_the_head_of_the_queue_is_looked_up_once_while_it_waits_for_the_budget(lookups: list[str]) -> None:
    engine = driver(max_num_batched_tokens=16, chunked_prefill=False)
    engine.add(new("a", 10, max_tokens=20, ignore_eos=True))
    engine.add(new("b", 16, max_tokens=4))
    for _ in range(15):
        assert list(granted(engine, engine.step())) == ["a"]
    assert lookups.count("b") <= 2  # the first step leaves less of the budget than the others
    engine.drain()


def test_a_request_that_lacks_blocks_joins_when_more_of_its_prompt_is_cached(lookups: list[str]) -> None:
    """No block was freed: the second joins, as it shares all but one of those that it needs."""
    engine = driver(full(10), max_num_batched_tokens=12)
    engine.add(new("a", range(28), max_tokens=8, ignore_eos=True))
    engine.add(new("b", [*range(27), 40], max_tokens=2))
    seen = [set(granted(engine, engine.step())) for _ in range(4)]
    assert seen[:3] == [{"a"}, {"a"}, {"a", "b"}]
    engine.drain()


def test_a_request_that_lacks_blocks_joins_when_some_are_freed(lookups: list[str]) -> None:
    engine = driver(full(16))
    for name in "ab":
        engine.add(new(name, 20, max_tokens=20, ignore_eos=True))
    engine.add(new("c", 30, max_tokens=4))
    for _ in range(4):
        assert set(granted(engine, engine.step())) == {"a", "b"}
    engine.abort("a")
    assert set(granted(engine, engine.step())) == {"b", "c"}
    assert lookups.count("c") == 2
    engine.drain()


def test_a_skipped_lookup_could_not_have_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = []
    original = Admission.refused_again

    def refused_again(self: Admission, request: Request, budget: int) -> bool:
        if not original(self, request, budget):
            return False
        skipped.append(request.name)
        refusal = self.last
        assert self.try_admit(request, budget, []) == 0, f"{request.name} could join"
        self.last = refusal
        return True

    monkeypatch.setattr(Admission, "refused_again", refused_again)
    for seed in range(25):
        random_run(seed, MOVES)
    assert len(skipped) > 40


def test_cached_blocks_of_the_head_of_the_queue_are_kept() -> None:
    """While it waits, the running sequence goes round through all other free blocks, as its window moves on."""
    engine = driver(window(8, blocks=9))
    engine.add(new("old", range(12), max_tokens=1))
    engine.drain()
    engine.add(new("running", 8, max_tokens=50, ignore_eos=True))
    engine.step()
    engine.add(new("waits", [*range(12), *[30] * 33], max_tokens=2))
    for _ in range(36):
        assert list(granted(engine, engine.step())) == ["running"]
    assert engine.events["evictions"] > 4
    engine.abort("running")
    assert work(engine, engine.step())["waits"].start == 12
    engine.drain()
