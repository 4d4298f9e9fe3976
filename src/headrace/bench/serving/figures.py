"""From the outcomes of requests to the figures of a row, with the share that met the SLO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.bench.measure import percentile
from headrace.bench.report import Label, Row
from headrace.bench.serving.load import Ending, Loaded, Outcome
from headrace.sim.workload.slo import SLO

SHARES = (50, 90, 99)
_MAX_REASONS = 5


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
        met = sum(_met(slo, outcome) for outcome in outcomes)
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


def _met(slo: SLO, outcome: Outcome) -> bool:
    """Whether the request was answered within all targets."""
    return outcome.ending is Ending.ANSWERED and slo.met(outcome.ttft_s, outcome.tpot_s, outcome.e2e_s)


def reasons(loaded: Loaded) -> list[str]:
    """Lines that say why requests failed, the most frequent first."""
    failed = Counter(outcome.reason for outcome in loaded.outcomes if outcome.ending is Ending.FAILED)
    lines = [f"{count} failed: {reason}" for reason, count in failed.most_common(_MAX_REASONS)]
    rest = len(failed) - len(lines)
    return [*lines, f"and for {rest} other reasons"] if rest > 0 else lines
