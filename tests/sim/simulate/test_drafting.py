"""Drafts in a simulation: what drafters read and draft is what they do in an engine, and takes its time and memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.build import EngineParts, survey
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence, SeqSlice, SliceResult, StepPlan, StepResult
from headrace.errors import ConfigError
from headrace.plan.hardware_table import find_hardware
from headrace.plan.ledger import ledger
from headrace.runner.executor import ModelExecutor
from headrace.runner.step import Step
from headrace.sim.draft_cost import DraftWork, PayingLength, steady_work
from headrace.sim.simulate.deploy import Deployment, deploy
from headrace.sim.simulate.drafting import DraftKind, DraftReads
from headrace.sim.simulate.executor import Drafts
from headrace.sim.simulate.load import Load, Service
from headrace.sim.work import SliceShape
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Lengths, Workload
from headrace.speculative.control import Speculation
from tests import needs
from tests.sim.simulate.test_schedule import prepared, request

CHAT = Workload(Lengths(200, 0.5, 20, 600), Lengths(60, 0.5, 10, 120))
CHUNK = 24
TIGHT = {"num_kv_blocks": 51, "block_size": 4, "max_model_len": 200, "max_num_batched_tokens": CHUNK}


@dataclass
class Computed:
    """Notes the parts of each step of a drafter: first position, tokens."""

    model: Any
    steps: list[list[tuple[int, int]]] = field(default_factory=list)

    def forward(self, step: Step, *inputs: Any) -> Any:
        ends = step.cu_q.tolist()
        starts = step.positions[step.cu_q[:-1]].tolist()
        self.steps.append([(start, ends[at + 1] - ends[at]) for at, start in enumerate(starts)])
        return self.model.forward(step, *inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def watched(parts: EngineParts, kind: DraftKind) -> Computed:
    assert isinstance(parts.executor, ModelExecutor) and isinstance(parts.executor.drafter, Speculation)
    (method,) = parts.executor.drafter.methods
    name = "model" if kind == "model" else "layers"
    computed = Computed(getattr(method, name))
    setattr(method, name, computed)
    return computed


def as_steps(work: DraftWork) -> list[list[tuple[int, int]]]:
    return [[(part.start, part.tokens) for part in shape] for shape in work.reads]


@pytest.mark.parametrize(
    ("drafter", "kind"),
    [("tale-draft", "model"), pytest.param("tale-eagle", "layers", marks=pytest.mark.long)],
)
def test_drafters_read_and_draft_as_in_an_engine(drafter: str, kind: DraftKind) -> None:
    """With preemption, chunks, reads that take more than a step, and room for few drafts."""
    needs.native()
    options = TIGHT | {
        "speculative": drafter, "num_speculative_tokens": 4, "adaptive_speculation": False, "max_num_seqs": 6,
        "speculative_tree_nodes": 0 if kind == "layers" else None,
    }  # fmt: skip
    parts, requests = prepared(24, **options)
    computed, reads = watched(parts, kind), DraftReads(kind, CHUNK)
    engine, queue, preempted, accepted, rejected, cut = parts.engine, list(requests), 0, 0, 0, 0
    while queue or engine.has_work:
        if queue:
            engine.add(request(queue.pop(0)), 0.0)
        plan = engine.begin(0.0)
        computed.steps.clear()
        result = parts.executor.execute(plan)
        work = reads.after(plan, result)
        cut += len(work.reads) > 1
        expected = as_steps(work)
        assert computed.steps[: len(expected)] == expected
        rounds = [
            (len(step), sum(start + 1 for start, _ in step)) for step in computed.steps[len(expected) :]
        ]
        assert rounds == list(work.rounds)
        assert work.drafted == sum(len(part.draft) for part in result.results)
        for one, part in zip(plan.slices, result.results, strict=True):
            accepted += max(0, len(part.tokens) - 1)
            rejected += one.num_draft - max(0, len(part.tokens) - 1)
            preempted += one.new is not None and len(one.new.tokens) > one.new.num_prompt
        engine.finish(result, 0.0)
    assert preempted and accepted and rejected and cut


def deployed(
    drafter: str | None, model: str = "shape:llama-3.2-3b", drafts: int = 4, *, adaptive: bool = False
) -> Deployment:
    config = EngineConfig(model, max_model_len=1024, adaptive_speculation=adaptive)
    if drafter is not None:
        config = replace(config, speculative=drafter, num_speculative_tokens=drafts)
    return deploy(config, find_hardware("h100"))


def tpot_s(deployment: Deployment, acceptance: float = 0.8) -> float:
    drafts = Drafts(deployment.most_drafts, acceptance) if deployment.most_drafts else None
    simulation = Service(deployment, drafts=drafts).simulation(Load(CHAT, Arrivals(2.0), 16))
    tally = simulation.run()
    assert tally.answered == 16 and 0 <= simulation.drafting_s < simulation.busy_s
    if not deployment.resolved.adaptive_speculation:
        assert (simulation.drafting_s > 0) == (deployment.draft_cost is not None)
    return tally.tpot.percentile(0.5)


def test_a_drafter_pays_by_its_size() -> None:
    """At 80 % acceptance one of the model's own size costs more than it brings, and a small one little."""
    plain = tpot_s(deployed(None))
    large, small = deployed("shape:llama-3.2-3b"), deployed("shape:llama-3.2-1b")
    assert tpot_s(large) > 1.1 * plain
    looked_up = tpot_s(deployed("ngram"))
    assert looked_up < tpot_s(small) < tpot_s(large)
    tiny = deployed("tale-draft", "tale", drafts=3)
    assert tpot_s(tiny) < 0.95 * tpot_s(deployed(None, "tale"))


def test_as_many_are_drafted_as_pay() -> None:
    """With adaptive speculation a drafter that does not pay drafts little, and one that pays what is worth most."""
    plain, large = tpot_s(deployed(None)), deployed("shape:llama-3.2-3b", adaptive=True)
    assert 0.95 * plain < tpot_s(large) < 1.005 * plain
    small = deployed("ngram", drafts=9, adaptive=True)
    assert tpot_s(small) < 0.6 * plain
    lengths = PayingLength(small.cost, None, 0.8, 9)
    for batch, context in ((1, 100), (512, 300)):
        rates = {
            drafts: sum(0.8**depth for depth in range(drafts + 1))
            / small.cost.verifying_s(batch, 384, drafts)
            for drafts in range(10)
        }
        if context == 300:  # 384 is in the middle of the contexts with so many bits
            assert lengths(batch, context) == max(rates, key=rates.__getitem__) < 9
    assert lengths(1, 100) == 9 and PayingLength(small.cost, None, 0.0, 9)(1, 100) == 0
    shape = (SliceShape(4, 384, 4),) * 7
    assert small.cost.verifying_s(7, 384, 3) == pytest.approx(small.cost.step_s(shape), rel=1e-12)
    assert small.cost.verifying_s(7, 384, 0) == small.cost.decode_s(7, 384)


def test_what_is_not_read_while_drafting_rests() -> None:
    """A model reads it when it drafts again, layers never."""
    new = NewSequence(SamplingParams(max_tokens=50), tuple(range(30)), 30, 0, frozenset())
    prompt = StepPlan(1, (SeqSlice(1, tuple(range(30)), 0, sample=True, new=new),))
    token = StepPlan(2, (SeqSlice(1, (7,), 30, sample=True),))
    first, second = SliceResult(1, (7,)), SliceResult(1, (8,), draft=(9, 9))
    kinds: tuple[DraftKind, ...] = ("model", "layers")
    for kind, start in zip(kinds, (0, 30), strict=True):
        reads = DraftReads(kind, 512)
        assert reads.after(prompt, StepResult(1, (first,)), rests=True) == DraftWork()
        work = reads.after(token, StepResult(2, (second,)))
        assert work.reads == ((SliceShape(32 - start, start, 1),),) and work.rounds == ((1, 33),)


def test_drafts_are_priced_by_the_cost_model_of_the_drafter() -> None:
    itself = deployed("shape:llama-3.2-3b")
    cost, step = itself.draft_cost, itself.cost
    assert cost is not None
    work = steady_work(4, 300, 3)
    assert work == DraftWork(((SliceShape(1, 300, 1),) * 4,), ((4, 4 * 302), (4, 4 * 303)))
    whole = sum(step.decoding_s(4, 4 * (301 + at)) for at in range(3))
    assert 0.6 * whole < cost.seconds(work) < whole  # the scheduler does not run for a draft
    prompt = DraftWork(((SliceShape(500, 0, 0),),))
    assert prompt.drafted == 0 and cost.seconds(prompt) > step.prefill_s(500) * 0.7
    assert cost.seconds(DraftWork()) == 0.0


@pytest.mark.parametrize("drafter", ["tale-draft", "tale-eagle", "tale-medusa", "ngram", "auto"])
def test_the_plan_of_memory_is_the_engines(drafter: str) -> None:
    config = EngineConfig(
        "tale", speculative=drafter, num_speculative_tokens=4, kv_cache_memory="8MiB", max_model_len=512
    )
    if drafter in ("tale-eagle", "tale-medusa"):
        config = replace(config, speculative_tree_nodes=0)
    plan = survey(config)
    deployment = deploy(config, find_hardware("this"))
    spec, resolved = plan.spec, deployment.resolved
    assert deployment.groups == plan.resolved.kv_groups
    assert ledger(spec, resolved) == plan.ledger
    own = sum(line.bytes for line in plan.ledger.weights if line.name.startswith("draft"))
    if drafter == "ngram":
        assert deployment.draft_cost is None and not own
        return
    assert own > 0 and deployment.draft_cost is not None
    assert 0 < deployment.draft_cost.seconds(steady_work(2, 100, 3)) < 1.0


def test_heads_and_layers_end_in_the_models_head() -> None:
    """So they cost more than it, and layers more than heads; a head drafts one token."""
    most = {}
    for drafter in ("tale-eagle", "tale-medusa"):
        deployment = deployed(drafter, "tale", drafts=9)
        assert deployment.draft_cost is not None
        work = steady_work(4, 100, deployment.most_drafts)
        assert deployment.draft_cost.seconds(work) > deployment.cost.head_s(4 * deployment.most_drafts) > 0
        most[drafter] = deployment.most_drafts
    assert most["tale-eagle"] == 9 > most["tale-medusa"] > 0


def test_quantised_drafters_on_gpus_are_smaller_and_faster() -> None:
    config = EngineConfig("shape:llama-3.2-3b", speculative="shape:llama-3.2-1b", max_model_len=1024)
    plain, int8 = (
        deploy(replace(config, speculative_quantization=name), find_hardware("l4")) for name in (None, "int8")
    )
    assert plain.draft_cost is not None and int8.draft_cost is not None
    assert plain.resolved.draft_model is not None and int8.resolved.draft_model is not None
    saved = plain.resolved.draft_model.weight_bytes - int8.resolved.draft_model.weight_bytes
    assert 0.6e9 < saved < 0.8e9  # the table of embeddings stays, and its rows in int8 are the head
    assert int8.settings["kv_cache_memory"] - plain.settings["kv_cache_memory"] > 0.8 * saved
    ratio = plain.draft_cost.seconds(steady_work(1, 300, 4)) / int8.draft_cost.seconds(steady_work(1, 300, 4))
    assert 1.3 < ratio < 2.0, ratio


def test_drafters_whose_heads_devices_cannot_share_are_refused() -> None:
    config = EngineConfig("shape:qwen2.5-7b", speculative="shape:qwen2.5-0.5b", max_model_len=1024)
    with pytest.raises(ConfigError, match=r"4xh100 cannot share the 2 KV heads of shape:qwen2\.5-0\.5b"):
        deploy(config, find_hardware("4xh100"))
