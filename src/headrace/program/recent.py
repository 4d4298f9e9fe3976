"""The KV groups of blocks that are not yet coded."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.types import Retention
from headrace.errors import ConfigError
from headrace.models.spec import KVLayout
from headrace.program.records import Program

CODED_BLOCKS = "int4"
"""The type of keys and values whose blocks are coded when they are complete."""


def with_recent(program: Program, kv_dtype: str) -> Program:
    """The program with the KV groups that keys and values of type `kv_dtype` need.

    For "int4" every group gets a second one, of the same layers, after all of the program's own: it keeps, in bfloat16,
    the block that a sequence is writing. A query reads its own block there and earlier ones as codes, whatever else the
    step computes, so no bit depends on how a prompt was cut into steps (KIVI, Liu et al. 2024, keeps recent tokens wide
    likewise). Applying it twice changes nothing more.
    """
    if kv_dtype != CODED_BLOCKS or any(layout.recent for layout in program.kv):
        return program
    if any(layout.value_in_key is not None for layout in program.kv):
        raise ConfigError(
            "kv_cache_dtype int4 needs keys and values of heads, and this model caches latents: use fp8"
        )
    recent = (_recent(layout) for layout in program.kv if layout.state is None)
    return replace(program, kv=(*program.kv, *recent))


def _recent(layout: KVLayout) -> KVLayout:
    """A window of one token: blocks are whole, so it holds the block of the next token."""
    return replace(
        layout, name=f"recent {layout.name}", retention=Retention.WINDOW, window=1, sinks=0, recent=True
    )
