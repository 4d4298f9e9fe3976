"""Snapshots as plain values: what the web page shows, live or from a file.

They hold counts, times and made-up names: no prompt, no output, and no id of a request.
"""

from __future__ import annotations

from typing import Any

from headrace.core.engine import EngineStats
from headrace.core.snapshot import BlockMap, Lane, Snapshot
from headrace.core.types import Output, RequestStats

_KINDS = {"chatcmpl": "chat", "cmpl": "text", "resp": "response", "embd": "embedding"}
_OTHER = "request"
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


def snapshot_data(snapshot: Snapshot, before: tuple[float, EngineStats] | None) -> dict[str, Any]:
    """One picture of an engine, with its rates since an earlier one, given by its time and counts."""
    now, stats = snapshot.now, snapshot.stats
    return {
        "now": _rounded(now, 3),
        "running": stats.running,
        "waiting": stats.waiting,
        "max_num_seqs": snapshot.max_num_seqs,
        "max_num_batched_tokens": snapshot.max_num_batched_tokens,
        **_rates(before, now, stats),
        "output_tokens": stats.scheduler.output_tokens,
        "roofline": _rounded(stats.roofline_fraction, 3),
        "preemptions": stats.scheduler.preemptions,
        "prefix_queries": 0 if stats.cache is None else stats.cache.queries,
        "prefix_hits": 0 if stats.cache is None else stats.cache.hits,
        "evictions": 0 if stats.cache is None else stats.cache.evictions,
        "lanes": [_lane(lane) for lane in snapshot.lanes],
        "maps": [_map(one) for one in snapshot.maps],
    }


def lane_name(request_id: str, index: int = 0) -> str:
    """Such as "chat 3fa92c", and "chat 3fa92c.1" for its second completion.

    `request_id` is the engine's: the answer's id and the number of the prompt. An id may contain text that a caller
    wrote, so it is hashed: the caller who knows the answer's id can find its lane, but a lane does not reveal the id.
    """
    answer, _, prompt = request_id.rpartition("-")
    kind = _KINDS.get(answer.partition("-")[0], _OTHER)
    number = f"{_fnv(answer):08x}"[:6]
    parts = [part for part in (prompt, str(index)) if part not in ("", "0") and part.isdecimal()]
    return ".".join([f"{kind} {number}", *(part[:6] for part in parts)])


def _fnv(text: str) -> int:
    """FNV-1a of 32 bits: pages can compute it anywhere, while browsers offer SHA to secure origins only."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


def _rates(before: tuple[float, EngineStats] | None, now: float, stats: EngineStats) -> dict[str, float]:
    """Output tokens and steps a second, and tokens a step, since the previous tick."""
    if before is None or now <= before[0]:
        return {"tokens_per_s": 0.0, "steps_per_s": 0.0, "tokens_per_step": 0.0}
    seconds, old, new = now - before[0], before[1].scheduler, stats.scheduler
    steps = new.steps - old.steps
    return {
        "tokens_per_s": round((new.output_tokens - old.output_tokens) / seconds, 1),
        "steps_per_s": round(steps / seconds, 1),
        "tokens_per_step": round((new.scheduled_tokens - old.scheduled_tokens) / steps, 2) if steps else 0.0,
    }


def _lane(lane: Lane) -> dict[str, Any]:
    name = lane_name(lane.request_id, lane.index)
    return {"name": name, "phase": lane.phase.value, "computed": lane.num_computed} | _progress(lane)


def ending_data(output: Output) -> dict[str, Any]:
    """How a request ended."""
    stats, reason = output.stats, output.finish_reason
    name = lane_name(output.request_id, output.index)
    ending: dict[str, Any] = {"name": name, "reason": None if reason is None else reason.value}
    if stats is not None:
        ending |= {"finished": _rounded(stats.finished_s, 3)} | _progress(stats)
    return ending


def _progress(one: Lane | RequestStats) -> dict[str, Any]:
    drafts = {"drafted": one.num_drafted, "accepted": one.num_accepted} if one.num_drafted else {}
    return drafts | {
        "arrival": _rounded(one.arrival_s, 3),
        "scheduled": _rounded(one.first_scheduled_s, 3),
        "first": _rounded(one.first_token_s, 3),
        "prompt": one.num_prompt,
        "cached": one.num_cached,
        "output": one.num_output,
        "preemptions": one.num_preemptions,
    }


def _map(one: BlockMap) -> dict[str, Any]:
    return {
        "name": one.name,
        "blocks": one.num_blocks,
        "block_size": one.block_size,
        "per_cell": one.blocks_per_cell,
        "held": one.held,
        "findable": one.findable,
        "runs": one.runs,
    }


def _rounded(seconds: float | None, digits: int) -> float | None:
    return None if seconds is None else round(seconds, digits)
