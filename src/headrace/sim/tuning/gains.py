"""What speculation brings by the cost model, and how a model lies in memory under a config."""

from __future__ import annotations

from headrace.config import EngineConfig
from headrace.plan.hardware import Hardware
from headrace.plan.units import DTYPE_BYTES
from headrace.quant.format import ACTIVATION_NAMES
from headrace.sim.planner.formats import AS_STORED, store
from headrace.sim.planner.memory import Footprint, Placement
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.speed import Speed

ACCEPTANCE, DRAFTS = 0.6, 3
"""Assumed: the share of drafted tokens that are right, each given that those before it are, and tokens of a draft.
`headrace bench speculative` measures the first one."""


def speculation_gain(speed: Speed, batch: int, context: int) -> float:
    """How many times faster tokens come if ACCEPTANCE of the drafted ones are right, and drafting costs nothing: the
    formula of Leviathan et al. (2023), with the cost model's time of a step that verifies."""
    expected = (1 - ACCEPTANCE ** (DRAFTS + 1)) / (1 - ACCEPTANCE)
    rows = batch * (DRAFTS + 1)
    return (
        expected * speed.decode_s(batch, context) / speed.costs.decoding_s(rows, float(rows * (context + 1)))
    )


def footprint_of(
    model: PlannedModel, config: EngineConfig, hardware: Hardware, kv: str, format: str | None = None
) -> Footprint:
    """One copy of the model on one device, stored as the config says. format: in place of the config's; kv: as
    `--kv-cache-dtype`."""
    own = AS_STORED if config.quantization in (None, *ACTIVATION_NAMES) else config.quantization
    return Footprint(store(model, hardware, format or own or AS_STORED, kv), hardware, Placement())


def planned_kv(config: EngineConfig, hardware: Hardware) -> str:
    """The config's type of KV, as plans name it there."""
    kv = "fp8" if config.kv_cache_dtype == "fp8_e4m3" else config.kv_cache_dtype
    return "auto" if hardware.kind == "cuda" and kv in DTYPE_BYTES else kv
