"""What is simulated: the engine that a config gives on some hardware, and what its steps take there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.core.engine import Engine
from headrace.core.policy import SchedulerConfig
from headrace.core.types import KVGroupSpec, StepPlan, StepResult
from headrace.errors import ConfigError, DoesNotFit
from headrace.models.families import weight_names
from headrace.models.rope import with_context
from headrace.models.source import HubOptions, resolve_model
from headrace.models.spec import ModelSpec
from headrace.models.stored import open_source, stored_spec
from headrace.plan.drafts import DraftModel
from headrace.plan.formats import MemoryFormat
from headrace.plan.hardware import Hardware, Machine, this_machine
from headrace.plan.hardware_table import THIS
from headrace.plan.kv import streaming_spec
from headrace.plan.ledger import ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.scheduling import scheduler_config
from headrace.plan.units import format_bytes
from headrace.program.lower import lower
from headrace.program.records import Program
from headrace.sim.cost import CostModel
from headrace.sim.draft_cost import DraftCost, PayingLength, make_draft_cost
from headrace.sim.machine import profile_here
from headrace.sim.online import OnlineCost
from headrace.sim.planner.formats import Stored, store
from headrace.sim.planner.memory import GPU_USABLE_PERCENT
from headrace.sim.planner.model import from_spec
from headrace.sim.profile import Profile
from headrace.sim.simulate.drafting import DraftReads, draft_kind
from headrace.sim.simulate.executor import Drafting, Drafts, SimulatedExecutor, SyntheticTokens
from headrace.sim.simulate.times import CostTimes
from headrace.sim.step_budget import TimeBudget
from headrace.sim.work import CPU_PRODUCTS, model_work
from headrace.speculative.drafters import Drafters, find_drafters

_SETTINGS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "kv_cache_memory",
    "max_model_len",
    "step_time_budget",
    "speculative",
    "num_speculative_tokens",
)


MOST_REPLICAS, FEW_REPLICAS = 1024, 8
MOST_BLOCKS = 1 << 25
"""KV blocks of all replicas of a simulation: each takes about 90 bytes before the first request. A few replicas may
have more."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine, ready to be simulated as often as needed. `assumed`: where step times come from, for people.

    resolved: the engine's plan; of weights on a GPU that are quantised, as they would be without. draft_cost: prices
    what drafts; None where drafts cost nothing, or there are none.
    """

    name: str
    hardware: str
    scheduler: SchedulerConfig
    groups: tuple[KVGroupSpec, ...]
    prefix_caching: bool
    cost: CostModel
    profile: Profile
    settings: Mapping[str, Any]
    assumed: str
    resolved: ResolvedConfig
    draft_cost: DraftCost | None = None

    def make_engine(self, drafts: Drafts | None = None) -> tuple[Engine, SimulatedExecutor]:
        """A new engine, and an executor without a model."""
        seconds, budget = self.settings["step_time_budget"], None
        if seconds != "off":
            most = self.scheduler.max_num_batched_tokens
            budget = TimeBudget(OnlineCost(self.cost), most, seconds if isinstance(seconds, float) else None)
        engine = Engine(self.scheduler, self.groups, prefix_caching=self.prefix_caching, step_budget=budget)
        source = SyntheticTokens(self.scheduler.vocab_size, drafts)
        lengths = None
        if drafts is not None and self.resolved.adaptive_speculation:
            lengths = PayingLength(self.cost, self.draft_cost, drafts.acceptance, drafts.most)
        return engine, SimulatedExecutor(source, self._drafting(), lengths)

    def _drafting(self) -> Drafting | None:
        """Prices the drafting of one engine."""
        cost, kind = self.draft_cost, draft_kind(self.resolved)
        if cost is None or kind is None:
            return None
        reads = DraftReads(kind, self.scheduler.max_num_batched_tokens)

        def drafting(plan: StepPlan, result: StepResult, *, rests: bool) -> float:
            return cost.seconds(reads.after(plan, result, rests=rests))

        return drafting

    @property
    def most_drafts(self) -> int:
        """Tokens that are drafted for a sequence in a step at most: each head drafts one."""
        heads = self.resolved.draft_heads
        most = self.scheduler.max_draft
        return most if heads is None or not heads.count else min(most, heads.count)

    @property
    def most_replicas(self) -> int:
        """Engines that one simulation can hold in memory."""
        blocks = sum(group.num_blocks for group in self.groups)
        return min(MOST_REPLICAS, max(FEW_REPLICAS, MOST_BLOCKS // blocks))

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the context and the KV cache hold, in tokens."""
        length: int = self.settings["max_model_len"]
        return length

    @property
    def times(self) -> CostTimes:
        return CostTimes(self.cost, self.kept_tokens)

    @property
    def kept_tokens(self) -> int:
        """Tokens of a sequence that stay where KV tokens are evicted; 0 where none are."""
        eviction = self.scheduler.eviction
        return 0 if eviction is None else eviction.budget

    def describe(self) -> str:
        """One line for people."""
        blocks = " + ".join(f"{group.num_blocks:,}" for group in self.groups)
        return (
            f"{self.name} on {self.hardware}: {blocks} KV blocks of {self.groups[0].block_size} tokens, up to "
            f"{self.scheduler.max_num_seqs} sequences and {self.scheduler.max_num_batched_tokens:,} tokens a step; "
            f"step times from {self.assumed}"
        )

    def describe_drafts(self) -> str | None:
        """One line for people; None where nothing is drafted."""
        most = self.most_drafts
        if not most:
            return None
        what = f"drafts: chains of {most}"
        if self.resolved.adaptive_speculation:
            what = f"drafts: chains of up to {most}, as many as pay by the acceptance rate and the step times"
        if self.draft_cost is None:
            return f"{what}; they are looked up, which takes no time here"
        size = self.resolved.draft_model or self.resolved.draft_heads
        assert size is not None
        held = size.weight_bytes if isinstance(size, DraftModel) else size.bytes
        first = ", n-grams before it left out" if "," in (self.resolved.speculative or "") else ""
        return f"{what}; by {self.draft_cost.name} ({format_bytes(held)}), whose steps are priced{first}"


def deploy(config: EngineConfig, hardware: Hardware) -> Deployment:
    """The engine that `config` gives on this hardware; several devices share every layer. No weight is read.

    Raises ModelError where there is no such model, and ConfigError where it does not fit or an option is wrong.
    """
    source = open_source(resolve_model(config.model, HubOptions(config.revision, config.download_dir)))
    if config.hf_overrides:
        source = replace(source, config={**source.config, **config.hf_overrides})
    stored = with_context(stored_spec(source), config.max_model_len)
    drafters = find_drafters(
        config.speculative,
        source,
        stored,
        max_model_len=config.max_model_len,
        download_dir=config.download_dir,
    )
    config = _drafting_chains(config, drafters)
    here = hardware.name == THIS
    machine = this_machine() if here else _together(hardware)
    weights, draft_memory, saved = None, None, 0
    if hardware.kind == "cuda" and (config.quantization or config.speculative_quantization) is not None:
        weights, draft_memory, saved = _rounded(config, stored, drafters, hardware)
        machine = replace(machine, memory_available=machine.memory_available + saved)
        config = replace(config, quantization=None, speculative_quantization=None)
    resolved = _resolve(config, stored, machine, drafters, saved)
    spec = streaming_spec(stored, resolved.attention_sinks, resolved.sliding_window)
    programs = [lower(spec, weight_names(spec))]
    _check_shards(programs[0], hardware, "this model")
    if resolved.draft_model is not None:
        programs.append(resolved.draft_model.program)
        _check_shards(programs[1], hardware, resolved.draft_model.name)
    if hardware.count > 1 and any(map(_is_latent, programs)):
        machine = _with_copies_of_kv(spec, resolved, machine, hardware.count)
        resolved = _resolve(config, stored, machine, drafters, saved)
    if draft_memory is not None and resolved.draft_model is not None:
        resolved = replace(resolved, draft_model=replace(resolved.draft_model, memory=draft_memory))
    profile, assumed = Profile.of_hardware(hardware), "its data sheet"
    if here:
        profile, assumed = profile_here(resolved.kernels, resolved.num_threads)
    work = model_work(spec, resolved) if weights is None else weights.work()
    format = resolved.quantization if weights is None else weights.format
    cost = CostModel(work, profile, tp=hardware.count)
    products = CPU_PRODUCTS if weights is None else weights.products
    return _deployment(hardware.label, spec, resolved, cost, format, assumed, products)


def deploy_spec(
    config: EngineConfig,
    stored: ModelSpec,
    machine: Machine,
    profile: Profile,
    drafters: Drafters,
) -> Deployment:
    """The engine that `config` gives on one CPU machine with this profile, for a model whose spec is known, and what
    drafts for it under this config.

    Raises ConfigError where it does not fit or an option is wrong.
    """
    config = _drafting_chains(config, drafters)
    resolved = _resolve(config, with_context(stored, config.max_model_len), machine, drafters)
    spec = streaming_spec(stored, resolved.attention_sinks, resolved.sliding_window)
    cost = CostModel(model_work(spec, resolved), profile)
    return _deployment(THIS, spec, resolved, cost, resolved.quantization, f"the profile of {profile.name}")


def _deployment(
    hardware: str,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    cost: CostModel,
    format: str | None,
    assumed: str,
    products: Mapping[str, str] = CPU_PRODUCTS,
) -> Deployment:
    """format: that of the weights, as `--quantization` takes it; products: as `work_in` takes it."""
    return Deployment(
        name=resolved.model,
        hardware=hardware,
        scheduler=scheduler_config(resolved, spec.vocab_size),
        groups=resolved.kv_groups,
        prefix_caching=resolved.enable_prefix_caching,
        cost=cost,
        profile=cost.profile,
        settings={**{name: getattr(resolved, name) for name in _SETTINGS}, "quantization": format},
        assumed=assumed,
        resolved=resolved,
        draft_cost=make_draft_cost(resolved.draft_model, resolved.draft_heads, cost, products),
    )


def _drafting_chains(config: EngineConfig, drafters: Drafters) -> EngineConfig:
    """With the drafters that were found, as chains. Raises ConfigError where trees are asked for."""
    if config.speculative_tree_nodes:
        raise ConfigError(
            f"speculative_tree_nodes {config.speculative_tree_nodes}: trees of drafts are not simulated; leave it out, "
            "and chains are"
        )
    trees = drafters.heads is not None or drafters.layers is not None
    return replace(config, speculative=drafters.option, speculative_tree_nodes=0 if trees else None)


def _resolve(
    config: EngineConfig, stored: ModelSpec, machine: Machine, drafters: Drafters, saved: int = 0
) -> ResolvedConfig:
    """The engine's plan, as the engine makes it. saved: bytes by which the machine's memory and the weights are both
    planned larger than they are, see `_rounded`."""
    try:
        return resolve(
            config, stored, machine, draft=drafters.spec, heads=drafters.heads, layers=drafters.layers
        )
    except DoesNotFit as error:
        if not saved:
            raise
        counted = f"weights and memory both count the {format_bytes(saved)} that fewer bits save"
        raise DoesNotFit(f"{error} ({counted} on {machine.name})") from None


def _rounded(
    config: EngineConfig, spec: ModelSpec, drafters: Drafters, hardware: Hardware
) -> tuple[Stored | None, MemoryFormat | None, int]:
    """The weights as `quantization` stores them on a GPU, how a model that drafts is stored then, and the bytes that
    both save; None where nothing changes. This engine runs on CPUs only, so that its own options know no such GPU: the
    planner does. Layers that draft keep their 16 bits."""
    if config.sliding_window is not None:
        raise ConfigError("quantization and sliding_window cannot be simulated together on a GPU")
    weights, memory, saved = None, None, 0
    if config.quantization is not None:
        weights, saved = _stored(config.model, spec, hardware, config.quantization)
        if weights.weight_bytes >= _usable(hardware):
            raise DoesNotFit(
                f"the weights need {format_bytes(weights.weight_bytes)} in {config.quantization}, but "
                f"{format_bytes(_usable(hardware))} of memory is available; use a smaller model, or more devices"
            )
    format = config.speculative_quantization or config.quantization
    if drafters.spec is not None and format is not None:
        draft, saved_too = _stored("draft", drafters.spec, hardware, format)
        memory, saved = draft.memory, saved + saved_too
    return weights, memory, saved


def _stored(name: str, spec: ModelSpec, hardware: Hardware, format: str) -> tuple[Stored, int]:
    model = from_spec(name, spec)
    plain, rounded = store(model, hardware), store(model, hardware, format)
    return rounded, plain.weight_bytes - rounded.weight_bytes


def _together(hardware: Hardware) -> Machine:
    """The devices of one machine as one, whose memory holds what they share."""
    machine, total = hardware.machine(), hardware.total_memory
    return replace(machine, name=hardware.title, memory_total=total, memory_available=_usable(hardware))


def _usable(hardware: Hardware) -> int:
    """Bytes for weights, activations and KV: of GPUs as much as a plan uses, so that what does not fit there is not
    simulated."""
    percent = GPU_USABLE_PERCENT if hardware.kind == "cuda" else 100
    return hardware.total_memory * percent // 100


def _with_copies_of_kv(spec: ModelSpec, resolved: ResolvedConfig, machine: Machine, count: int) -> Machine:
    """The machine without the memory that `count` devices lose where each keeps all latents: what weights and
    activations leave holds so many copies."""
    planned = ledger(spec, resolved)
    fixed = planned.total - planned.kv_pool_bytes
    left = fixed + max(0, machine.memory_available - fixed) // count
    return replace(machine, memory_available=min(machine.memory_available, left))


def _is_latent(program: Program) -> bool:
    return any(op.attributes.value_in_key is not None for op in program.of_kind("attention"))


def _check_shards(program: Program, hardware: Hardware, name: str) -> None:
    """Raise ConfigError where the devices cannot share the heads: those of queries where one latent serves all."""
    heads = {
        (spec.num_kv_heads, "KV heads") if spec.value_in_key is None else (spec.num_heads, "heads")
        for spec in (op.attributes for op in program.of_kind("attention"))
    }
    uneven = [f"{count} {kind}" for count, kind in sorted(heads) if count % hardware.count]
    if hardware.count > 1 and uneven:
        raise ConfigError(
            f"{hardware.label} cannot share the {uneven[0]} of {name} evenly; take a number of devices "
            "that divides them"
        )
