"""The parts of a Snapshot message: lanes and block maps, typed and bounded like every message."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headrace.core.params import MAX_N
from headrace.core.snapshot import MAX_CELLS, MAX_LANES, NOBODY, RUN, Phase
from headrace.core.types import MAX_NAME_CHARS

MAX_GROUPS = 256

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=NOBODY)]


class LaneNow(Struct, frozen=True, array_like=True):
    """Lane."""

    request_id: Name
    index: Annotated[int, Meta(ge=0, lt=MAX_N)]
    phase: Phase
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    num_prompt: Count
    num_computed: Count
    num_cached: Count
    num_output: Count
    num_preemptions: Count


class MapNow(Struct, frozen=True, array_like=True):
    """BlockMap."""

    name: Name
    num_blocks: Count
    block_size: Count
    blocks_per_cell: Annotated[int, Meta(ge=1)]
    held: Count
    findable: Count
    runs: Annotated[tuple[Number, ...], Meta(max_length=MAX_CELLS * RUN)]


Lanes = Annotated[tuple[LaneNow, ...], Meta(max_length=MAX_LANES)]
Maps = Annotated[tuple[MapNow, ...], Meta(max_length=MAX_GROUPS)]
