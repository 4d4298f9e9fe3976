"""What is simulated: the engine that a config gives on some hardware, and what its steps take there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.core.engine import Engine
from headrace.core.policy import SchedulerConfig
from headrace.core.types import KVGroupSpec
from headrace.errors import ConfigError
from headrace.models.families import weight_names
from headrace.models.rope import with_context
from headrace.models.source import HubOptions, resolve_model
from headrace.models.spec import ModelSpec
from headrace.models.stored import open_source, stored_spec
from headrace.plan.draft_methods import NGRAM
from headrace.plan.hardware import Hardware, Machine, this_machine
from headrace.plan.hardware_table import THIS
from headrace.plan.kv import streaming_spec
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.scheduling import scheduler_config
from headrace.program.lower import lower
from headrace.sim.cost import CostModel
from headrace.sim.machine import profile_here
from headrace.sim.online import OnlineCost
from headrace.sim.planner.formats import AS_STORED, Stored, store
from headrace.sim.planner.model import from_spec
from headrace.sim.profile import Profile
from headrace.sim.simulate.executor import Drafts, SimulatedExecutor, SyntheticTokens
from headrace.sim.simulate.times import CostTimes
from headrace.sim.step_budget import TimeBudget
from headrace.sim.work import model_work

_SETTINGS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "kv_cache_memory",
    "max_model_len",
    "step_time_budget",
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine, ready to be simulated as often as needed. `assumed`: where step times come from, for people."""

    name: str
    hardware: str
    scheduler: SchedulerConfig
    groups: tuple[KVGroupSpec, ...]
    prefix_caching: bool
    cost: CostModel
    profile: Profile
    settings: Mapping[str, Any]
    assumed: str

    def make_engine(self, drafts: Drafts | None = None) -> tuple[Engine, SimulatedExecutor]:
        """A new engine, and an executor without a model."""
        seconds, budget = self.settings["step_time_budget"], None
        if seconds != "off":
            most = self.scheduler.max_num_batched_tokens
            budget = TimeBudget(OnlineCost(self.cost), most, seconds if isinstance(seconds, float) else None)
        engine = Engine(self.scheduler, self.groups, prefix_caching=self.prefix_caching, step_budget=budget)
        return engine, SimulatedExecutor(SyntheticTokens(self.scheduler.vocab_size, drafts))

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the context and the KV cache hold, in tokens."""
        length: int = self.settings["max_model_len"]
        return length

    @property
    def times(self) -> CostTimes:
        return CostTimes(self.cost)

    def describe(self) -> str:
        """One line for people."""
        blocks = " + ".join(f"{group.num_blocks:,}" for group in self.groups)
        return (
            f"{self.name} on {self.hardware}: {blocks} KV blocks of {self.groups[0].block_size} tokens, up to "
            f"{self.scheduler.max_num_seqs} sequences and {self.scheduler.max_num_batched_tokens:,} tokens a step; "
            f"step times from {self.assumed}"
        )


def deploy(config: EngineConfig, hardware: Hardware) -> Deployment:
    """The engine that `config` gives on this hardware; several devices share every layer. No weight is read.

    Raises ModelError where there is no such model, and ConfigError where it does not fit or an option is wrong.
    """
    _check(config)
    source = open_source(resolve_model(config.model, HubOptions(config.revision, config.download_dir)))
    if config.hf_overrides:
        source = replace(source, config={**source.config, **config.hf_overrides})
    stored = with_context(stored_spec(source), config.max_model_len)
    here = hardware.name == THIS
    machine = this_machine() if here else _together(hardware)
    weights = None
    if hardware.kind == "cuda" and config.quantization is not None:
        weights, saved = _rounded(config, stored, hardware)
        machine = replace(machine, memory_available=machine.memory_available + saved)
        config = replace(config, quantization=None)
    resolved = resolve(config, stored, machine)
    spec = streaming_spec(stored, resolved.attention_sinks, resolved.sliding_window)
    _check_shards(spec, hardware)
    profile, assumed = Profile.of_hardware(hardware), "its data sheet"
    if here:
        profile, assumed = profile_here(resolved.kernels, resolved.num_threads)
    work = model_work(spec, resolved) if weights is None else weights.work()
    format = resolved.quantization if weights is None else weights.format
    cost = CostModel(work, profile, tp=hardware.count)
    return _deployment(hardware.label, spec, resolved, cost, format, assumed)


def deploy_spec(config: EngineConfig, stored: ModelSpec, machine: Machine, profile: Profile) -> Deployment:
    """The engine that `config` gives on one CPU machine with this profile, for a model whose spec is known.

    Raises ConfigError where it does not fit or an option is wrong.
    """
    resolved = resolve(config, with_context(stored, config.max_model_len), machine)
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
) -> Deployment:
    """format: that of the weights, as `--quantization` takes it."""
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
    )


def _check(config: EngineConfig) -> None:
    if config.speculative not in (None, NGRAM):
        raise ConfigError(
            f"speculative {config.speculative:.80} cannot be simulated: use ngram, whose drafts cost nothing, with "
            "--acceptance-rate"
        )


def _rounded(config: EngineConfig, spec: ModelSpec, hardware: Hardware) -> tuple[Stored, int]:
    """The weights as `quantization` stores them on a GPU, and the bytes that this saves. This engine runs on CPUs only,
    so that its own options know no such GPU: the planner does."""
    if config.sliding_window is not None:
        raise ConfigError("quantization and sliding_window cannot be simulated together on a GPU")
    model = from_spec(config.model, spec)
    plain, rounded = store(model, hardware), store(model, hardware, config.quantization or AS_STORED)
    return rounded, plain.weight_bytes - rounded.weight_bytes


def _together(hardware: Hardware) -> Machine:
    """The devices of one machine as one, whose memory holds what they share."""
    machine, total = hardware.machine(), hardware.total_memory
    return replace(machine, name=hardware.title, memory_total=total, memory_available=total)


def _check_shards(spec: ModelSpec, hardware: Hardware) -> None:
    """Raise ConfigError where the devices cannot share the heads."""
    heads = {layout.num_kv_heads for layout in lower(spec, weight_names(spec)).kv if layout.state is None}
    uneven = [count for count in heads if count % hardware.count]
    if hardware.count > 1 and uneven:
        raise ConfigError(
            f"{hardware.label} cannot share the {uneven[0]} KV heads of this model evenly; take a number of devices "
            "that divides them"
        )
