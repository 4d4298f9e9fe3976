"""A request's tokens do not depend on what else happens.

Every case runs the same requests twice: each one alone in an engine that shares, splits and evicts nothing, and all of
them together in an engine that is made to do so. No token may differ, and the event must really have happened.
Before every step the free KV blocks are filled with NaN: a sequence depends on nothing that it has not written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.executor import Executor
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest, SliceResult, StepPlan, StepResult, TokenLogprobs
from tests.poison import Poison

Tokens = dict[tuple[str, int], tuple[int, ...]]
Logprobs = dict[tuple[str, int], tuple[TokenLogprobs, ...]]

# One entry a kind of layer: the model to load, and the options that make it what it is.
MODELS: dict[str, dict[str, object]] = {
    "full": {"model": "tale"},
    "full on torch": {"model": "tale", "ops_force": "torch"},
    "window": {"model": "mistral"},
    "hybrid": {"model": "qwen2-hybrid"},
    "full latents": {"model": "deepseek"},
    "shared": {"model": "gemma4"},
    "sinks": {"model": "tale", "attention_sinks": 4, "sliding_window": 24},
}
TORCH = "full on torch"
SAMPLED = {TORCH: "", "full latents": "everything", "sinks": "everything"}
"""Kinds whose steps are the same code as others': one case of the usual run each, with what is their own in it.

Of torch there is none: its first use takes as long as all others, and tests/test_llm.py compares its tokens."""
KINDS = [pytest.param(kind, marks=pytest.mark.long if kind in SAMPLED else ()) for kind in MODELS]
ALONE: dict[str, object] = {
    "max_num_seqs": 4, "max_num_batched_tokens": 2048, "enable_prefix_caching": False, "block_size": 64,
}  # fmt: skip


@dataclass
class Run:
    """Tokens of every completion, and what happened on the way."""

    tokens: Tokens = field(default_factory=dict)
    logprobs: Logprobs = field(default_factory=dict)
    finished: dict[tuple[str, int], FinishReason] = field(default_factory=dict)
    largest_batch: int = 0
    split_prompts: int = 0
    dropped_blocks: int = 0
    preemptions: int = 0
    hits: int = 0
    evictions: int = 0
    forks: int = 0
    copies: int = 0
    drafted: int = 0
    accepted: int = 0
    stored: int = 0  # slices that computed a token for its logits alone
    retried: int = 0
    evicted: int = 0  # tokens
    computed: int = 0
    failed: set[str] = field(default_factory=set)
    steps: int = 0

    def see(self, plan: StepPlan) -> None:
        self.steps += 1
        self.largest_batch = max(self.largest_batch, len(plan.slices))
        for work in plan.slices:
            self.split_prompts += not work.sample
            self.stored += work.num_stored > 0
            dropped = max((update.dropped for update in work.tables if update is not None), default=0)
            self.dropped_blocks = max(self.dropped_blocks, dropped)


Hook = Callable[[EngineParts, int], None]
Wrap = Callable[[Executor], Executor]


def run(
    options: Mapping[str, object],
    requests: Sequence[NewRequest],
    hook: Hook | None = None,
    wrap: Wrap = lambda executor: executor,
    *,
    at_once: bool = False,
    in_turn: bool = False,
    may_fail: bool = False,
) -> Run:
    """Run the requests together, one more of them arriving at every second step, or all `at_once`; or `in_turn`, each
    after the end of the one before. `hook` runs before each step, `wrap` may put something between engine and
    executor."""
    parts = assemble(EngineConfig.from_kwargs(**{"dtype": "float32", "num_threads": 1, **options}))
    engine, executor, seen, queue = parts.engine, wrap(parts.executor), Run(), list(requests)
    poison = Poison(parts)
    while queue or engine.has_work:
        while queue and (not engine.has_work if in_turn else at_once or seen.steps % 2 == 0):
            engine.add(queue.pop(0), float(seen.steps))
            if not at_once:
                break
        if hook is not None:
            hook(parts, seen.steps)
        poison.before_plan()
        plan = engine.begin(float(seen.steps))
        poison.after_plan()
        seen.see(plan)
        for output in engine.finish(executor.execute(plan), float(seen.steps)):
            key = (output.request_id, output.index)
            if output.error is not None:
                seen.failed.add(output.request_id)
            seen.tokens[key] = seen.tokens.get(key, ()) + output.tokens
            seen.logprobs[key] = seen.logprobs.get(key, ()) + output.logprobs
            if output.finish_reason is not None:
                seen.finished[key] = output.finish_reason
            if output.finish_reason is not None and output.stats is not None:
                seen.drafted += output.stats.num_drafted
                seen.accepted += output.stats.num_accepted
        assert seen.steps < 5000
    assert poison.taken > 0
    assert may_fail or not seen.failed
    stats = engine.stats()
    assert stats.free_blocks == stats.total_blocks
    seen.preemptions, seen.forks = stats.scheduler.preemptions, stats.scheduler.forks
    seen.copies, seen.retried = stats.scheduler.block_copies, stats.scheduler.retried_slices
    seen.computed, seen.evicted = stats.scheduler.scheduled_tokens, stats.scheduler.evicted_tokens
    if stats.cache is not None:
        seen.hits, seen.evictions = stats.cache.hits, stats.cache.evictions
    return seen


def alone(model: Mapping[str, object], requests: Sequence[NewRequest]) -> Tokens:
    """The tokens of each request by itself."""
    return each_alone(model, requests).tokens


def each_alone(model: Mapping[str, object], requests: Sequence[NewRequest]) -> Run:
    """Tokens and their logprobs of each request by itself, in turn in one engine. Asking for prompt logprobs makes each
    completion compute its own prompt."""
    single = [replace(one, params=replace(one.params, prompt_logprobs=0)) for one in requests]
    seen = run({**ALONE, **model}, single, in_turn=True)
    assert seen.forks == seen.preemptions == seen.hits == seen.split_prompts == seen.stored == 0
    return seen


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_an_engine_forgets_the_requests_before(
    kind: str, tiny_models: Mapping[str, str], alike_alone: Callable[[str, object], Run]
) -> None:
    """What comes alone in turn is what comes from an engine that is new."""
    expected = alike_alone(kind, 16)
    for request in alike()[4:6]:
        fresh = each_alone({**located(kind, tiny_models), "block_size": 16}, [request])
        assert_same(kind, fresh, expected, [one.request_id for one in alike() if one != request])


def requests_for(count: int = 7, seed: int = 0, n: int = 1, max_tokens: int = 40) -> list[NewRequest]:
    """Half of them greedy, half sampled; prompts of 5 to 90 tokens, most after one of two shared prefixes."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(6, 2048) for _ in range(48)] for _ in range(2)]
    made = []
    for index in range(count):
        shared = prefixes[index % 2] if index % 3 else []
        prompt = (*shared, *(rng.randrange(6, 2048) for _ in range(rng.randint(5, 42))))
        sampled = SamplingParams(temperature=0.8, top_p=0.9, top_k=50, seed=index, repetition_penalty=1.1)
        params = sampled if index % 2 else SamplingParams(temperature=0.0)
        params = replace(params, n=n if index % 2 else 1, max_tokens=max_tokens, ignore_eos=True)
        made.append(NewRequest(f"request-{index}", prompt, params))
    return made


def matrix(kinds: Iterable[str], cases: Iterable[str], usual: Collection[tuple[str, str]]) -> list[object]:
    """Parameters (kind, case): `usual` ones run each time, the others in the long run."""
    return [
        pytest.param(kind, case, id=f"{case}-{kind}", marks=() if (kind, case) in usual else pytest.mark.long)
        for case in cases
        for kind in kinds
    ]


@pytest.fixture(scope="module")
def expected(tiny_models: Mapping[str, str]) -> Callable[[str, int], Tokens]:
    known: dict[tuple[str, int], Tokens] = {}

    def of(kind: str, n: int = 1) -> Tokens:
        if (kind, n) not in known:
            known[kind, n] = alone(located(kind, tiny_models), requests_for(n=n))
        return known[kind, n]

    return of


def located(kind: str, tiny_models: Mapping[str, str]) -> dict[str, object]:
    options = dict(MODELS[kind])
    options["model"] = tiny_models.get(str(options["model"]), options["model"])
    return options


FEWER = {"window": 24, "sinks": 14}


def fitted(kind: str, options: Mapping[str, object], fewer: Mapping[str, int] = FEWER) -> dict[str, object]:
    """The options for a kind of model: where a sequence never holds more than sinks and window, blocks only run
    out when there are fewer of them, and a stream has no longest length."""
    chosen = dict(options)
    if "num_kv_blocks" in chosen and kind in fewer:
        chosen["num_kv_blocks"] = fewer[kind]
    if kind == "sinks":
        chosen.pop("max_model_len", None)
    return chosen


PLAIN: dict[str, object] = {"enable_prefix_caching": False, "block_size": 16}

CASES: dict[str, tuple[dict[str, object], Callable[[Run], bool]]] = {
    "batch mix": (PLAIN, lambda seen: seen.largest_batch >= 4),
    "chunked prefill": (
        {**PLAIN, "max_num_batched_tokens": 13, "max_num_seqs": 8},
        lambda seen: seen.split_prompts >= 7,
    ),
    "prefix cache": ({"block_size": 8}, lambda seen: seen.hits >= 2 * 48),
    "preemption": (
        {**PLAIN, "block_size": 4, "num_kv_blocks": 46, "max_model_len": 150, "max_num_batched_tokens": 24,
         "max_num_seqs": 8},
        lambda seen: seen.preemptions >= 1,
    ),
    "everything": (
        {"block_size": 4, "num_kv_blocks": 60, "max_model_len": 150, "max_num_batched_tokens": 19,
         "max_num_seqs": 6, "preemption_victim": "cheapest", "scheduling_policy": "fair"},
        lambda seen: min(seen.preemptions, seen.hits, seen.split_prompts, seen.largest_batch - 1, seen.evictions) >= 1,
    ),
}  # fmt: skip


def combinations(
    cases: Iterable[str], sampled: Mapping[str, str] = SAMPLED, kinds: Iterable[str] = MODELS
) -> list[object]:
    """All pairs of a kind and a case; of a kind that is sampled all but its one case are `long`."""
    return [
        pytest.param(
            kind, case, marks=pytest.mark.long if sampled.get(kind, case) != case else (), id=f"{case}-{kind}"
        )
        for case in cases
        for kind in kinds
    ]


@pytest.mark.parametrize(
    ("kind", "case"),
    combinations(CASES, SAMPLED | dict.fromkeys(("window", "hybrid", "shared"), "everything")),
)
def test_no_token_differs(
    kind: str, case: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    options, happened = CASES[case]
    seen = run({**located(kind, tiny_models), **fitted(kind, options)}, requests_for())
    assert happened(seen), seen
    if not kind.startswith("full"):
        assert seen.dropped_blocks >= 1
    assert seen.tokens == expected(kind)


@pytest.mark.parametrize(
    ("kind", "room"),
    combinations(
        ["roomy", "preempting"], SAMPLED | {"window": "roomy", "hybrid": "preempting", "shared": "preempting"}
    ),
)
def test_several_completions_share_their_prompt(
    kind: str, room: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    tight = room == "preempting"
    options: dict[str, object] = {"block_size": 16}
    if tight:
        options = {"block_size": 4, "num_kv_blocks": 50, "max_model_len": 150, "max_num_seqs": 6}
    seen = run({**located(kind, tiny_models), **fitted(kind, options)}, requests_for(n=3))
    assert seen.forks >= 2
    assert seen.copies >= 2  # a prompt that ends with a block needs none
    assert (seen.preemptions >= 1) == tight
    assert seen.tokens == expected(kind, 3)


def alike() -> list[NewRequest]:
    """Five requests with one prompt, one of them with n=3, two that begin like it, and an unrelated one."""
    rng = random.Random(4)
    prompt = tuple(rng.randrange(6, 2048) for _ in range(75))
    near = [(*prompt[:52], *(rng.randrange(6, 2048) for _ in range(20))) for _ in range(2)]
    prompts = [prompt, near[0], prompt, prompt, near[1], prompt, near[0], prompt[::-1]]
    made = []
    for index, tokens in enumerate(prompts):
        params = SamplingParams(
            temperature=0.8 if index % 2 else 0.0, seed=index, max_tokens=1 if index == 0 else 14, logprobs=2,
            n=3 if index == 5 else 1, ignore_eos=True,
        )  # fmt: skip
        made.append(NewRequest(f"request-{index}", tokens, params))
    return made


SHARED: dict[str, tuple[dict[str, object], Callable[[Run], bool]]] = {
    "in one step": ({"block_size": 16}, lambda seen: seen.steps == 15 and seen.stored == 6 and seen.copies >= 4),
    "in large blocks": ({"block_size": 64}, lambda seen: seen.stored == 6),
    "at a block's end": ({"block_size": 25}, lambda seen: seen.stored == 6),
    "in chunks": (
        {"block_size": 8, "max_num_batched_tokens": 17}, lambda seen: min(seen.stored, seen.split_prompts) >= 3,
    ),
    "and preempted": (
        {"block_size": 4, "num_kv_blocks": 44, "max_model_len": 150, "max_num_seqs": 10},
        lambda seen: min(seen.stored, seen.preemptions) >= 1,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def alike_alone(tiny_models: Mapping[str, str]) -> Callable[[str, object], Run]:
    """By kind and block size: the order in which attention sums depends on the latter, and so do the last bits."""
    known: dict[tuple[str, object], Run] = {}

    def of(kind: str, size: object) -> Run:
        if (kind, size) not in known:
            known[kind, size] = each_alone({**located(kind, tiny_models), "block_size": size}, alike())
        return known[kind, size]

    return of


def assert_same(kind: str, seen: Run, expected: Run, without: Sequence[str] = ()) -> None:
    """The same tokens, and on native ops the same bits of their logprobs."""
    kept = {key for key in expected.tokens if key[0] not in without}
    assert {key: seen.tokens[key] for key in kept} == {key: expected.tokens[key] for key in kept}
    if kind != TORCH:
        assert {key: seen.logprobs[key] for key in kept} == {key: expected.logprobs[key] for key in kept}


@pytest.mark.parametrize(
    ("kind", "case"),
    combinations(
        SHARED, {TORCH: "", **{kind: "and preempted" for kind in MODELS if kind not in ("full", TORCH)}}
    ),
)
def test_equal_prompts_that_arrive_together_share_them(
    kind: str, case: str, tiny_models: Mapping[str, str], alike_alone: Callable[[str, object], Run]
) -> None:
    options, happened = SHARED[case]
    options = fitted(kind, options, {"window": 10, "sinks": 12})
    seen = run({**located(kind, tiny_models), **options}, alike(), at_once=True)
    assert happened(seen), seen
    assert_same(kind, seen, alike_alone(kind, options["block_size"]))


@dataclass
class Spoiling:
    """An executor that never runs some slices of the first step and reports them as failed, and that calls `before` and
    `after` on either side of that step."""

    executor: Executor
    lost: Sequence[int] = ()
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    misread: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step_id > 1:
            return self.executor.execute(plan)
        self.before()
        run = tuple(work for work in plan.slices if work.request_id not in self.lost)
        result = self.executor.execute(replace(plan, slices=run))
        self.after()
        self.misread = {part.request_id: part.tokens for part in result.results}
        errors = tuple(SliceResult(number, error="planted") for number in self.lost)
        return replace(result, results=(*errors, *result.results))


@pytest.mark.parametrize("kind", KINDS)
def test_slices_after_a_failed_one_are_recomputed(
    kind: str, tiny_models: Mapping[str, str], alike_alone: Callable[[str, object], Run]
) -> None:
    spoilt: list[Spoiling] = []

    def wrap(executor: Executor) -> Executor:
        spoilt.append(Spoiling(executor, lost=(0,)))
        return spoilt[0]

    options = {**located(kind, tiny_models), "block_size": 8}
    seen = run(options, alike(), wrap=wrap, at_once=True, may_fail=True)
    assert seen.failed == {"request-0"} and seen.retried == 8  # all but the unrelated request had read it
    expected = alike_alone(kind, 8)
    first = {number: expected.tokens[f"request-{number}", 0][:1] for number in range(2, 5)}
    assert any(spoilt[0].misread[number] != token for number, token in first.items())
    assert_same(kind, seen, expected, without=["request-0"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_blocks_of_aborted_writers_stay_cached(
    kind: str, when: str, tiny_models: Mapping[str, str], alike_alone: Callable[[str, object], Run]
) -> None:
    found: list[EngineParts] = []

    def abort() -> None:
        for name in ("request-0", "request-1"):
            found[0].engine.abort(name, 0.0)

    seen = run(
        {**located(kind, tiny_models), "block_size": 8}, alike(), lambda parts, step: found.append(parts),
        lambda executor: Spoiling(executor, **{when: abort}), at_once=True,
    )  # fmt: skip
    ended = {name for (name, _), reason in seen.finished.items() if reason is FinishReason.ABORT}
    assert ended == {"request-0", "request-1"} and seen.retried == 0 and seen.stored == 6
    assert_same(kind, seen, alike_alone(kind, 8), without=sorted(ended))


@pytest.mark.parametrize("length", [255, 256])
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_a_prompt_is_computed_once(length: int, max_tokens: int) -> None:
    """Eight completions of it, or eight requests for it at once; the first may end in its first step."""
    prompt = tuple(6 + at * 7919 % 2000 for at in range(length))
    params = SamplingParams(n=8, max_tokens=max_tokens, temperature=1.0, seed=1, ignore_eos=True)
    completions = [NewRequest("all", prompt, params)]
    requests = [NewRequest(f"{at}", prompt, replace(params, n=1, seed=at)) for at in range(8)]
    for group, caching in ((completions, True), (completions, False), (requests, True)):
        seen = run({"model": "tale", "enable_prefix_caching": caching}, group, at_once=True)
        assert seen.computed - 8 * (max_tokens - 1) == length + 7


@pytest.mark.parametrize("kind", KINDS)
def test_aborting_some_does_not_affect_others(
    kind: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    doomed = {"request-1": 5, "request-2": 9, "request-5": 12, "request-6": 12}

    def hook(parts: EngineParts, step: int) -> None:
        for name, when in doomed.items():
            if step == when:
                parts.engine.abort(name, float(step))

    seen = run({**located(kind, tiny_models), "block_size": 8}, requests_for(), hook)
    aborted = {key for key, reason in seen.finished.items() if reason is FinishReason.ABORT}
    assert {name for name, _ in aborted} == set(doomed)
    for key, tokens in expected(kind).items():
        if key not in aborted:
            assert seen.tokens[key] == tokens
        else:
            assert seen.tokens[key] == tokens[: len(seen.tokens[key])]


def test_a_stream_runs_past_the_models_length_in_bounded_memory() -> None:
    request = NewRequest(
        "stream", tuple(range(6, 30)), SamplingParams(temperature=0.0, max_tokens=1100, ignore_eos=True)
    )
    options = {
        "model": "tale",
        "attention_sinks": 4,
        "sliding_window": 60,
        "block_size": 8,
        "num_kv_blocks": 12,
    }
    held = []

    def hook(parts: EngineParts, step: int) -> None:
        stats = parts.engine.stats()
        held.append(stats.total_blocks - stats.free_blocks)

    seen = run(options, [request], hook)
    model_len = 1024
    assert len(seen.tokens["stream", 0]) == 1100 > model_len
    assert max(held) <= 12
    assert max(held[-100:]) == max(held[100:200])


class Guessing:
    """An executor that proposes drafts: the right tokens, of which a seeded choice is spoiled.

    With `trees` each of them comes after a wrong one, which leads the main chain.
    """

    def __init__(self, executor: Executor, right: Tokens, *, trees: bool = False) -> None:
        self._trees = trees
        self._executor = executor
        self._texts = [list(tokens) for tokens in right.values()]
        self._rng = random.Random(0)
        self._written: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for work in plan.slices:
            if work.new is not None:
                self._written[work.request_id] = list(work.new.tokens[work.new.num_prompt :])
        result = self._executor.execute(plan)
        return replace(result, results=tuple(self._propose(part) for part in result.results))

    def _propose(self, part: SliceResult) -> SliceResult:
        written = self._written[part.request_id]
        written += part.tokens
        texts = [text for text in self._texts if written and text[: len(written)] == written]
        if not part.tokens or not texts:
            return part
        draft = texts[0][len(written) : len(written) + self._rng.randint(0, 5)]
        if draft and self._rng.random() < 0.5:
            draft[self._rng.randrange(len(draft))] = 7
        if not self._trees:
            return replace(part, draft=tuple(draft), draft_parents=())
        tokens = [token for right in draft for token in ((right + 1) % 2000, right)]
        parents = [2 * depth - 1 for depth in range(len(draft)) for _ in range(2)]
        return replace(part, draft=tuple(tokens), draft_parents=tuple(parents))


@pytest.mark.parametrize("kind", KINDS)
def test_verified_drafts_change_nothing(
    kind: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    """Sampled requests too: randomness depends on the position alone, so verification is exact."""
    right = expected(kind)
    options = {**located(kind, tiny_models), "block_size": 8}
    seen = run(options, requests_for(), wrap=lambda executor: Guessing(executor, right))
    assert seen.accepted >= 20 and seen.drafted - seen.accepted >= 5
    assert seen.tokens == right


def test_seeds_give_the_same_tokens_and_other_seeds_give_others() -> None:
    def sampled(seed: int, name: str) -> NewRequest:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=30, ignore_eos=True)
        return NewRequest(name, (0, 20, 30), params)

    first = run({"model": "tale"}, [sampled(1, "a"), sampled(2, "b")]).tokens
    again = run({"model": "tale"}, [sampled(2, "x"), sampled(1, "y")]).tokens
    assert first["a", 0] == again["y", 0]
    assert first["b", 0] == again["x", 0]
    assert first["a", 0] != first["b", 0]
