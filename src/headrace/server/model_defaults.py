"""Sampling defaults of the served model, where a request says nothing, as vLLM's server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.core.params import SamplingParams


def with_model_defaults(
    params: SamplingParams,
    body: object,
    defaults: Mapping[str, float],
    lengths: Sequence[int],
    context: int | None,
) -> SamplingParams:
    """`params` with `defaults` in place of what `body` leaves open.

    The default `max_tokens` bounds every answer. A prompt of `lengths` tokens that leaves less room in a `context`
    gets what is left.
    """
    changed: dict[str, float | int | None] = {
        name: value
        for name, value in defaults.items()
        if name != "max_tokens" and getattr(body, name, None) is None
    }
    limit = defaults.get("max_tokens")
    if limit is not None and (params.max_tokens is None or params.max_tokens > limit):
        room = limit if context is None else min(limit, context - max(lengths, default=0))
        changed["max_tokens"] = max(room, params.min_tokens) if room > 0 else params.max_tokens
    return replace(params, **changed) if changed else params  # type: ignore[arg-type]
