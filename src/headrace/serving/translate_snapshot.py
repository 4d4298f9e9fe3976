"""Between a view of the engine and the message that carries it. Fields have the same names on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.core.snapshot import BlockMap, Lane, Snapshot
from headrace.core.types import Output
from headrace.serving import messages as wire
from headrace.serving.journal import View
from headrace.serving.messages_snapshot import LaneNow, MapNow
from headrace.serving.translate import outputs_from_wire, outputs_to_wire, stats_from_wire, stats_to_wire


def view_to_wire(number: int, view: View) -> wire.Snapshot:
    now = view.snapshot
    return wire.Snapshot(
        number, now.now, stats_to_wire(number, now.stats), now.max_num_seqs, now.max_num_batched_tokens,
        tuple(LaneNow(**_fields(LaneNow, lane)) for lane in now.lanes),
        tuple(MapNow(**_fields(MapNow, one)) for one in now.maps),
        _ended(view.ended),
    )  # fmt: skip


def view_from_wire(message: wire.Snapshot) -> View:
    now = Snapshot(
        message.now, stats_from_wire(message.stats), message.max_num_seqs, message.max_num_batched_tokens,
        tuple(Lane(**_fields(LaneNow, lane)) for lane in message.lanes),
        tuple(BlockMap(**_fields(MapNow, one)) for one in message.maps),
    )  # fmt: skip
    return View(now, () if message.ended is None else tuple(outputs_from_wire(message.ended)))


def _ended(outputs: Iterable[Output]) -> wire.Outputs | None:
    """They are few and hold no tokens, so one message holds all of them."""
    return next(outputs_to_wire(outputs), None)


def _fields(kind: type[LaneNow] | type[MapNow], source: object) -> dict[str, Any]:
    return {name: getattr(source, name) for name in kind.__struct_fields__}
