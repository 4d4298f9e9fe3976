"""From the outcomes of requests to the figures of a row, with the share that met the SLO."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.measure import percentile
from headrace.bench.report import Label, Row
from headrace.bench.serve_load import Ending, Loaded, Outcome
from headrace.errors import ConfigError

SHARES = (50, 90, 99)
MAX_SLO_S = 86_400.0
_TARGETS = ("ttft", "tpot", "e2el")
_MAX_REASONS = 5


@dataclass(frozen=True, slots=True)
class SLO:
    """Latency targets of a request in seconds: TTFT, TPOT and end to end. None: no target."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @classmethod
    def parse(cls, texts: Sequence[str]) -> SLO | None:
        """From words such as "ttft:0.2"; None for no words. Raises ConfigError."""
        given: dict[str, float] = {}
        for text in texts:
            name, _, value = text.partition(":")
            try:
                seconds = float(value)
            except ValueError:
                seconds = math.nan
            if name not in _TARGETS or not 0 < seconds <= MAX_SLO_S:
                raise ConfigError(
                    f"--goodput takes {', '.join(_TARGETS)} with seconds up to {MAX_SLO_S:g}, such as "
                    f"ttft:0.2, got {text!r:.80}"
                )
            given[name] = seconds
        return cls(**given) if given else None

    def met(self, outcome: Outcome) -> bool:
        """Whether the request was answered within all targets."""
        measured = (
            (self.ttft, outcome.ttft_s),
            (self.tpot, outcome.tpot_s or 0.0),
            (self.e2el, outcome.e2e_s),
        )
        return outcome.ending is Ending.ANSWERED and all(
            limit is None or value <= limit for limit, value in measured
        )


def row_of(labels: Mapping[str, Label], loaded: Loaded, slo: SLO | None) -> Row:
    """The figures of one run. Latencies are over answered requests; there are none without one."""
    outcomes, wall = loaded.outcomes, max(loaded.wall_s, 1e-9)
    answered = [outcome for outcome in outcomes if outcome.ending is Ending.ANSWERED]
    counts = Counter(outcome.ending for outcome in outcomes)
    output = sum(outcome.output_tokens for outcome in answered)
    values = {
        "sent": float(len(outcomes)),
        "answered": float(counts[Ending.ANSWERED]),
        "refused": float(counts[Ending.REFUSED]),
        "failed": float(counts[Ending.FAILED]),
        "prompt_tokens": float(sum(outcome.prompt_tokens for outcome in answered)),
        "output_tokens": float(output),
        "wall_s": loaded.wall_s,
        "requests_per_s": len(answered) / wall,
        "output_tokens_per_s": output / wall,
        "client_share": loaded.cpu_s / wall,
        "late_p99_s": percentile([outcome.late_s for outcome in outcomes], 0.99),
    }
    if slo is not None:
        met = sum(slo.met(outcome) for outcome in outcomes)
        values["goodput_per_s"] = met / wall
        values["within_slo"] = met / max(1, len(outcomes))
    pools = {
        "ttft": [outcome.ttft_s for outcome in answered],
        "tpot": [outcome.tpot_s for outcome in answered if outcome.tpot_s is not None],
        "itl": [gap for outcome in answered for gap in outcome.gaps_s],
        "e2e": [outcome.e2e_s for outcome in answered],
    }
    for name, pool in pools.items():
        if pool:
            values |= {f"{name}_p{share}_s": percentile(pool, share / 100) for share in SHARES}
    return Row(labels, values)


def reasons(loaded: Loaded) -> list[str]:
    """Lines that say why requests failed, the most frequent first."""
    failed = Counter(outcome.reason for outcome in loaded.outcomes if outcome.ending is Ending.FAILED)
    lines = [f"{count} failed: {reason}" for reason, count in failed.most_common(_MAX_REASONS)]
    rest = len(failed) - len(lines)
    return [*lines, f"and for {rest} other reasons"] if rest > 0 else lines
