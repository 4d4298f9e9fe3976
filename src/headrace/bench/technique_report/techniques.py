"""The ways to serve one workload: the ladder of the demo, then formats and drafts on top of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.bench.baselines import BASELINES, BATCH, kv_token_bytes
from headrace.bench.measure import Measured, run_workload
from headrace.bench.model.latency import Progress
from headrace.bench.model.subject import Subject, load_subject
from headrace.bench.report import Label, Row
from headrace.bench.technique_report.sections import SECTION
from headrace.bench.technique_report.workload import requests
from headrace.bench.workload import Arrival
from headrace.config import EngineConfig
from headrace.core.executor import Executor
from headrace.core.types import StepPlan, StepResult
from headrace.plan.ledger import ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.sim.cost import CostModel
from headrace.sim.draft_cost import DraftWork, make_draft_cost
from headrace.sim.profile import Profile
from headrace.sim.simulate.drafting import DraftReads, draft_kind
from headrace.sim.work import StepShape

ROWS_S = 2.0
"""A technique's run takes about so long, where requests can be chosen so."""
QUICK_ROWS_S = 1.0
RUNS, QUICK_RUNS = 4, 1
"""Of a technique, while they take less than so many times `ROWS_S` together. The fastest one counts, because other
programs make a run slower, and nothing faster."""
FEWEST, MOST = 48, 512
ARRIVING = 0.2
"""The part of a run in which requests arrive."""
_WARM_UP = 4


@dataclass(frozen=True, slots=True)
class Technique:
    """A way to serve. against: the row that it is compared with. share: as in `Baseline`."""

    name: str
    change: str
    against: str | None
    options: Mapping[str, object]
    share: float = 1.0


def techniques(drafter: str) -> tuple[Technique, ...]:
    """`drafter`: what drafts where one does."""
    ladder = [one for one in BASELINES if one.name != "priorities"]
    before = [None, *(one.name for one in ladder)]
    made = [
        Technique(one.name, one.change, against, one.options, one.share)
        for one, against in zip(ladder, before, strict=False)
    ]
    top = made[-1]
    more: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("int8 weights", "a byte a weight, products of whole numbers", {"quantization": "int8"}),
        ("int4 weights", "half a byte a weight", {"quantization": "int4"}),
        ("int8 KV cache", "a byte for each number of keys and values", {"kv_cache_dtype": "int8"}),
        ("drafts", f"{drafter} drafts, the model verifies", {"speculative": drafter}),
        (
            "all together",
            "int8 weights and KV cache, and drafts where they pay",
            {"quantization": "int8", "kv_cache_dtype": "int8", "speculative": "auto"},
        ),
    )
    made += [Technique(name, change, top.name, {**top.options, **options}) for name, change, options in more]
    return tuple(made)


class Recording:
    """Forwards steps and keeps them with their results, and the tokens of each request by its number. Satisfies
    `Executor`."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.steps: list[tuple[StepPlan, StepResult]] = []
        self.tokens: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.inner.execute(plan)
        self.steps.append((plan, result))
        for one in result.results:
            if one.tokens:
                self.tokens.setdefault(one.request_id, []).extend(one.tokens)
        return result


@dataclass(slots=True)
class Served:
    """What one technique did: its run, the tokens of each request in the order of arrival, and its steps."""

    run: Measured
    answers: list[list[int]] = field(default_factory=list)
    steps: list[tuple[StepPlan, StepResult]] = field(default_factory=list)


def technique_rows(
    config: EngineConfig,
    *,
    drafter: str,
    profile: Profile | None,
    price_per_hour: float | None,
    seconds: float,
    runs: int,
    progress: Progress,
) -> Iterator[Row]:
    """A row for each technique; `seconds`: about how long each of its runs takes, where it has time for `runs`."""
    known: dict[str, Served] = {}
    ways = techniques(drafter)
    arrivals, memory = _workload(config, ways, seconds, progress)
    for way in ways:
        progress(way.name)
        subject = load_subject(_options(config, way, memory))
        served = _serve(subject, _served(way, arrivals), runs, runs * seconds)
        known[way.name] = served
        before = known.get(way.against or "")
        yield _row(way, subject, served, before, profile, price_per_hour)


def _options(config: EngineConfig, way: Technique, memory: int | None) -> EngineConfig:
    options: dict[str, Any] = dict(way.options)
    if config.max_model_len is not None:
        options["max_model_len"] = min(config.max_model_len, int(options["max_model_len"]))
    if memory is not None:
        options["kv_cache_memory"] = memory
    return replace(config, **options)


def _workload(
    config: EngineConfig, ways: Sequence[Technique], seconds: float, progress: Progress
) -> tuple[list[Arrival], int]:
    """As many requests as the best of the exact ways serves in `seconds`, and the KV memory of all ways."""
    progress("how many requests")
    best = next(way for way in ways if way.name == "prefix caching")
    subject = load_subject(_options(config, best, None), roofline=False)
    parts = subject.parts
    memory = BATCH * parts.resolved.max_model_len * kv_token_bytes(parts.resolved)
    probe = requests(FEWEST, parts.tokenizer, subject.vocab_size, rate_per_s=1e6)
    _serve(subject, probe[:_WARM_UP], 1, 0.0)
    run = run_workload(parts.engine, parts.executor, _renamed(probe, "probe"))
    count = round(min(MOST, max(FEWEST, seconds * run.requests / run.wall_s)))
    rate = count / (ARRIVING * seconds)
    return requests(count, parts.tokenizer, subject.vocab_size, rate_per_s=rate), memory


def _renamed(arrivals: Sequence[Arrival], name: str) -> list[Arrival]:
    """The same requests with other ids and a cache salt of their own: they hit nothing that others left."""
    return [
        replace(
            one, request=replace(one.request, request_id=f"{one.request.request_id}-{name}", cache_salt=name)
        )
        for one in arrivals
    ]


def _served(way: Technique, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The requests that a way serves: those that run one at a time are a part, all there from the start."""
    if way.share == 1.0:
        return list(arrivals)
    return [replace(one, at_s=0.0) for one in arrivals[: max(1, round(len(arrivals) * way.share))]]


def _serve(subject: Subject, arrivals: Sequence[Arrival], runs: int, seconds: float) -> Served:
    """The fastest of up to `runs` runs: of as many as begin within `seconds`, and of one at least. All give the same
    answers."""
    engine = subject.parts.engine
    warm = _renamed([replace(one, at_s=0.0) for one in arrivals[:_WARM_UP]], "warm")
    run_workload(engine, subject.parts.executor, warm)
    end, found = time.monotonic() + seconds, list[Served]()
    while not found or (len(found) < runs and time.monotonic() < end):
        recording = Recording(subject.parts.executor)
        run = run_workload(engine, recording, _renamed(arrivals, str(len(found))))
        answers = [tokens for _, tokens in sorted(recording.tokens.items())]
        found.append(Served(run, answers, recording.steps))
    return min(found, key=lambda one: one.run.wall_s)


def _row(
    way: Technique,
    subject: Subject,
    served: Served,
    before: Served | None,
    profile: Profile | None,
    price_per_hour: float | None,
) -> Row:
    run = served.run
    shapes = [step.shape for step in run.steps]
    resolved = subject.parts.resolved
    labels: dict[str, Label] = {
        SECTION: "techniques", "technique": way.name, "against": way.against or "", "change": way.change,
    }  # fmt: skip
    values = {
        "output_tokens_per_s": run.output_rate,
        "mean_batch": run.mean_batch,
        "weight_bytes": float(ledger(subject.parts.spec, resolved).weight_bytes),
        **predicted_rates(subject, shapes, run.output_tokens, profile, drafted(resolved, served.steps)),
        **costs(run.output_rate, price_per_hour),
    }
    if run.kv_used:
        values["kv_bytes"] = run.kv_used * kv_token_bytes(resolved)
    if way.share == 1.0 and run.ttft_s:
        values["ttft_p50_s"] = sorted(run.ttft_s)[len(run.ttft_s) // 2]
    if run.tpot_s:
        values["tpot_p50_s"] = sorted(run.tpot_s)[len(run.tpot_s) // 2]
    if before is not None:
        values["gain"] = run.output_rate / before.run.output_rate
        pairs = list(zip(served.answers, before.answers, strict=False))
        same = sum(
            one[: len(other)] == other[: len(one)] for one, other in pairs
        )  # drafts may overshoot the end
        values["same_answers"] = same / max(1, len(pairs))
    return Row(labels, values)


def drafted(resolved: ResolvedConfig, steps: Sequence[tuple[StepPlan, StepResult]]) -> list[DraftWork] | None:
    """What a drafter computed after these steps, nothing where tokens are looked up; None where it is not known which
    of several drafted, or trees were."""
    if resolved.speculative_tree_nodes or "," in (resolved.speculative or ""):
        return None
    kind = draft_kind(resolved)
    if kind is None:
        return []
    reads = DraftReads(kind, resolved.max_num_batched_tokens)
    return [
        reads.after(plan, result, rests=_is_decode(plan) and not any(one.draft for one in result.results))
        for plan, result in steps
    ]


def _is_decode(plan: StepPlan) -> bool:
    return all(work.sample and len(work.tokens) == 1 + work.num_draft for work in plan.slices)


def predicted_rates(
    subject: Subject,
    shapes: Sequence[StepShape],
    tokens: int,
    profile: Profile | None,
    drafts: Sequence[DraftWork] | None = (),
) -> dict[str, float]:
    """Tokens a second that the cost model and the plain roofline give for the steps that ran. drafts: what was drafted
    after them, which the roofline does not count; None where that is not known."""
    found: dict[str, float] = {}
    if drafts is None:
        return found
    if profile is not None:
        model, resolved = CostModel(subject.work, profile), subject.parts.resolved
        seconds = sum(model.step_s(shape) for shape in shapes)
        cost = make_draft_cost(resolved.draft_model, resolved.draft_heads, model)
        if cost is not None:
            seconds += sum(map(cost.seconds, drafts))
        found["predicted_tokens_per_s"] = tokens / seconds
    if subject.roofline is not None and not drafts:
        least = sum(subject.roofline.limit(subject.work.step(shape)).seconds for shape in shapes)
        found["formula_tokens_per_s"] = tokens / least
    return found


def costs(tokens_per_s: float, price_per_hour: float | None) -> dict[str, float]:
    """Of a million output tokens at this rate, in the currency of the price."""
    if price_per_hour is None:
        return {}
    return {"cost_per_million": price_per_hour / 3600 / tokens_per_s * 1e6}
