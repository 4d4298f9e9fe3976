"""What drafts for a model, what that brings by the cost model, and how a model lies in memory under a config."""

from __future__ import annotations

from headrace.config import EVICTION_SIZES, EngineConfig
from headrace.core.eviction import Eviction
from headrace.errors import ConfigError
from headrace.models.safetensors_reader import FilesMissing
from headrace.plan.draft_methods import NGRAM, draft_model_name
from headrace.plan.eviction import choose_sizes
from headrace.plan.hardware import Hardware
from headrace.plan.units import DTYPE_BYTES
from headrace.quant.format import ACTIVATION_NAMES
from headrace.sim.draft_cost import DraftCost, HeadDrafts, price_drafter, steady_work
from headrace.sim.planner.formats import AS_STORED, store
from headrace.sim.planner.memory import Footprint, Placement
from headrace.sim.planner.model import PlannedModel, from_spec
from headrace.sim.planner.speed import Speed
from headrace.sim.work import work_in
from headrace.speculative.drafters import Drafters, find_drafters

ACCEPTANCE, DRAFTS = 0.6, 3
"""Assumed: the share of drafted tokens that are right, each given that those before it are, and tokens of a draft.
`headrace bench speculative` measures the first one."""


def drafters_of(model: PlannedModel, config: EngineConfig, option: str | None) -> Drafters:
    """What drafts for a model with this option `speculative`: n-grams, as far as is known, where its files are not here
    yet. The other options are the config's."""
    if option is None:
        return Drafters()
    if model.source is None:
        return Drafters(NGRAM)
    try:
        return find_drafters(
            option,
            model.source,
            model.spec,
            max_model_len=config.max_model_len,
            download_dir=config.download_dir,
        )
    except FilesMissing:
        return Drafters(NGRAM)


def planned_drafts(drafters: Drafters, speed: Speed) -> DraftCost | None:
    """Prices what drafts for a model that lies in memory as `speed` has it, in the same format where that can hold it;
    None where tokens are looked up, which costs nothing, or nothing drafts."""
    stored, hardware, costs = speed.footprint.stored, speed.footprint.hardware, speed.costs
    name = draft_model_name(drafters.option) or ""
    if drafters.heads is not None:
        return HeadDrafts(drafters.heads, costs)
    if drafters.layers is not None:
        layers = drafters.layers
        return price_drafter(name, work_in(layers.spec, stored.memory, stored.products, layers), costs)
    if drafters.spec is None:
        return None
    model = from_spec(name, drafters.spec)
    try:
        draft = store(model, hardware, stored.format, stored.kv)
    except ConfigError:
        draft = store(model, hardware, AS_STORED, stored.kv)
    return price_drafter(name, draft.work(), costs)


def speculation_gain(speed: Speed, batch: int, context: int, drafts: DraftCost | None = None) -> float:
    """How many times faster tokens come if ACCEPTANCE of the drafted ones are right: the formula of Leviathan et al.
    (2023), with the cost model's time of a step that verifies, and of drafting. drafts: None costs nothing."""
    expected = (1 - ACCEPTANCE ** (DRAFTS + 1)) / (1 - ACCEPTANCE)
    verifying_s = speed.costs.verifying_s(batch, context, DRAFTS)
    drafting_s = 0.0 if drafts is None else drafts.seconds(steady_work(batch, context, DRAFTS))
    return expected * speed.decode_s(batch, context) / (verifying_s + drafting_s)


def footprint_of(
    model: PlannedModel, config: EngineConfig, hardware: Hardware, kv: str, format: str | None = None
) -> Footprint:
    """One copy of the model on one device, stored as the config says. format: in place of the config's; kv: as
    `--kv-cache-dtype`."""
    own = AS_STORED if config.quantization in (None, *ACTIVATION_NAMES) else config.quantization
    stored = store(model, hardware, format or own or AS_STORED, kv)
    return Footprint(stored, hardware, Placement(), _eviction(config, hardware))


def _eviction(config: EngineConfig, hardware: Hardware) -> Eviction | None:
    if config.kv_eviction == "off" or hardware.kind != "cpu":
        return None
    return choose_sizes(*(getattr(config, name) for name in EVICTION_SIZES))


def planned_kv(config: EngineConfig, hardware: Hardware) -> str:
    """The config's type of KV, as plans name it there."""
    kv = "fp8" if config.kv_cache_dtype == "fp8_e4m3" else config.kv_cache_dtype
    return "auto" if hardware.kind == "cuda" and kv in DTYPE_BYTES else kv
