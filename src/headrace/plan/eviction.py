"""Eviction of KV tokens: its sizes, what models it fits, and its memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.eviction import Eviction
from headrace.core.types import Retention
from headrace.errors import ConfigError
from headrace.models.spec import AttentionSpec, KVLayout, LatentSpec, ModelSpec, RecurrentSpec
from headrace.quant.format import PAGE

BUDGET, WINDOW, SINKS = 1024, 32, 4
_SCORED_ROWS = 4  # kMassRows in csrc/kernels.h
_PANEL = 16


def choose_sizes(
    budget: int | None, window: int | None, sinks: int | None, recent: int | None, interval: int | None
) -> Eviction:
    """The sizes in tokens, defaults in place of None. Raises ConfigError where they do not go together."""
    budget = BUDGET if budget is None else budget
    window = max(1, min(WINDOW, budget // 4)) if window is None else window
    sinks = min(SINKS, budget // 8) if sinks is None else sinks
    recent = max(1, min(window, budget // 4)) if recent is None else recent
    interval = max(window, budget // 4) if interval is None else interval
    if sinks + recent > budget:
        raise ConfigError(
            f"kv_eviction_budget {budget} is less than kv_eviction_sinks {sinks} and kv_eviction_recent {recent} "
            "together: the rest are the tokens that attention chooses"
        )
    if window > budget:
        raise ConfigError(f"kv_eviction_window {window} is greater than kv_eviction_budget {budget}")
    if interval < window:
        raise ConfigError(
            f"kv_eviction_interval {interval} is less than kv_eviction_window {window}: the queries that decide come "
            "after the last time that tokens were evicted"
        )
    return Eviction(budget, window, sinks, recent, interval)


def check_eviction(spec: ModelSpec, *, native: bool) -> None:
    """Raise ConfigError where tokens of a model cannot be evicted."""
    why = ""
    mixers = [layer.mixer for layer in spec.layers]
    attends = [mixer for mixer in mixers if isinstance(mixer, AttentionSpec)]
    if not native:
        why = "needs the native CPU kernels, which do not serve here"
    elif any(isinstance(mixer, LatentSpec) for mixer in mixers):
        why = "is not available for latent attention, whose heads share one key"
    elif any(isinstance(mixer, RecurrentSpec) for mixer in mixers):
        why = "is not available for recurrent layers, whose state cannot give tokens up"
    elif any(mixer.alibi for mixer in attends):
        why = (
            "is not available for linear biases (ALiBi), which need the distance to a key: after eviction its place "
            "in the cache no longer gives its position"
        )
    elif all(mixer.retention is not Retention.FULL for mixer in attends):
        why = "changes nothing in this model: every layer of it has a window of its own"
    if why:
        raise ConfigError(f"kv_eviction snapkv {why}")


def eviction_bytes(
    layouts: Sequence[KVLayout], sizes: Eviction, *, seqs: int, length: int, threads: int
) -> int:
    """Bytes beside the KV cache: the sums of attention of each sequence, and what choosing tokens of one needs.

    0 where no sequence of `length` tokens is above the budget.
    """
    if length <= sizes.budget:
        return 0
    most = sizes.most_within(length)
    sums = sum(
        len(layout.layers) * _pages(4 * seqs * layout.num_kv_heads * most)
        for layout in layouts
        if layout.retention is Retention.FULL
    )
    return sums + _pages(4 * threads * ((3 + _SCORED_ROWS) * _padded(length) + _padded(sizes.budget)))


def _padded(count: int) -> int:
    return (count + 2 * _PANEL - 1) // _PANEL * _PANEL


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
