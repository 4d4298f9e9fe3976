"""Writes docs/grafana-dashboard.json: a panel for every metric of `headrace serve`. Run it after changing either."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "docs" / "grafana-dashboard.json"

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, COLUMNS, HEIGHT = 24, 3, 7
MODEL = '{model_name=~"$model"}'
INSTANCE = '{instance=~"$instance"}'
PER = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """`series`: (PromQL, legend). `stacked`: the series add up to something."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    stacked: bool = False
    help: str = ""


def gauge(name: str, by: str = "") -> str:
    total = f"sum by ({by}) " if by else "sum"
    return f"{total}(headrace:{name}{MODEL})"


def rate(name: str, by: str = "") -> str:
    total = f"sum by ({by}) " if by else "sum"
    return f"{total}(rate(headrace:{name}_total{MODEL}{PER}))"


def quantiles(name: str, shares: tuple[float, ...] = (0.5, 0.9, 0.99)) -> tuple[tuple[str, str], ...]:
    buckets = f"sum by (le) (rate(headrace:{name}_bucket{MODEL}{PER}))"
    return tuple((f"histogram_quantile({share:g}, {buckets})", f"p{share * 100:g}") for share in shares)


def mean(name: str) -> str:
    return f"sum(rate(headrace:{name}_sum{MODEL}{PER})) / sum(rate(headrace:{name}_count{MODEL}{PER}))"


def times(title: str, name: str, help: str = "") -> Panel:
    return Panel(title, "s", quantiles(name), help=help)


def lengths(title: str, name: str) -> Panel:
    return Panel(title, "short", (*quantiles(name, (0.5, 0.99)), (mean(name), "mean")))


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("What callers wait for", (
        times("Time to first token", "time_to_first_token_seconds"),
        times("Inter-token latency", "inter_token_latency_seconds"),
        times("Whole answers", "e2e_request_latency_seconds"),
        times("Time per output token", "request_time_per_output_token_seconds", "The mean of each request."),
        times("In the queue", "request_queue_time_seconds"),
        times("Prefill", "request_prefill_time_seconds"),
        times("Decode", "request_decode_time_seconds"),
        times("Prefill and decode", "request_inference_time_seconds"),
        Panel("Completions by the reason of their end", "reqps",
              ((rate("request_success", "finished_reason"), "{{finished_reason}}"),), stacked=True),
    )),
    ("The engine", (
        Panel("Tokens", "short", (
            (rate("generation_tokens"), "output"),
            (rate("prompt_tokens"), "prompt"),
            (rate("prompt_tokens_cached"), "prompt, cached"),
        )),
        Panel("Completions", "short", (
            (gauge("num_requests_running"), "running"), (gauge("num_requests_waiting"), "waiting"),
        )),
        Panel("KV cache in use", "percentunit", (
            (f"avg(headrace:kv_cache_usage_perc{MODEL})", "blocks"),
        )),
        Panel("Share of the roofline", "percentunit", (
            (f"avg(headrace:roofline_fraction{MODEL})", "of the limit"),
        )),
        lengths("Tokens a step", "iteration_tokens_total"),
        Panel("Preemptions", "ops", ((rate("num_preemptions"), "preemptions"),)),
        Panel("KV tokens evicted", "ops", ((rate("kv_evicted_tokens"), "tokens"),)),
        Panel("State", "short", ((gauge("engine_state", "state"), "{{state}}"),), stacked=True),
        Panel("Restarts", "short", ((gauge("engine_restarts_total"), "restarts"),), "stat"),
        Panel("Set-up", "short", ((f"headrace:cache_config_info{MODEL}", ""),), "table"),
    )),
    ("The prefix cache", (
        Panel("Share of the tokens looked up that were found", "percentunit", (
            (f"{rate('prefix_cache_hits')} / {rate('prefix_cache_queries')}", "hits"),
        )),
        Panel("Lookups by the reason that no more was found", "ops",
              ((rate("prefix_cache_lookups", "reason"), "{{reason}}"),), stacked=True),
        Panel("Evictions", "ops", ((rate("prefix_cache_evictions"), "blocks"),)),
        Panel("Pins", "ops", (
            (rate("prefix_cache_pins"), "made"), (rate("prefix_cache_pins_broken"), "broken"),
        )),
    )),
    ("Speculation", (
        Panel("Share of the drafted tokens that were right", "percentunit", (
            (f"{rate('spec_decode_num_accepted_tokens')} / {rate('spec_decode_num_draft_tokens')}", "accepted"),
        )),
        Panel("Share of the drafts that were right so far", "percentunit", ((
            f"{rate('spec_decode_num_accepted_tokens_per_pos', 'position')} / ignoring (position) group_left "
            f"{rate('spec_decode_num_drafts')}", "{{position}}",
        ),)),
    )),
    ("What is asked for", (
        lengths("Prompts", "request_prompt_tokens"),
        lengths("Prompts, what was not cached", "request_prefill_kv_computed_tokens"),
        lengths("Outputs", "request_generation_tokens"),
        lengths("Longest output of a prompt", "request_max_num_generation_tokens"),
        lengths("max_tokens", "request_params_max_tokens"),
        lengths("n", "request_params_n"),
    )),
    ("Traffic", (
        Panel("HTTP requests", "reqps",
              ((rate("http_requests", "method, route, status"), "{{method}} {{route}} {{status}}"),)),
        Panel("Refused", "reqps", ((rate("admission_rejections", "reason"), "{{reason}}"),), stacked=True),
        Panel("Queue", "percentunit", (
            (f"{gauge('queue_completions')} / {gauge('queue_max_completions')}", "completions"),
            (f"{gauge('queue_tokens')} / {gauge('queue_max_tokens')}", "tokens"),
        )),
        Panel("Requests by key", "reqps", ((rate("key_requests", "key"), "{{key}}"),)),
        Panel("Output tokens by key", "short", ((rate("key_generation_tokens", "key"), "{{key}}"),), stacked=True),
        Panel("Prompt tokens by key", "short", (
            (rate("key_prompt_tokens", "key"), "{{key}}"), (rate("key_cached_tokens", "key"), "{{key}}, cached"),
        )),
        Panel("Refused by key", "reqps", ((rate("key_rejections", "key, reason"), "{{key}}: {{reason}}"),)),
    )),
    ("The server process", (
        Panel("Lag of the event loop", "s", quantiles("event_loop_lag_seconds", (0.5, 0.99, 0.999))),
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{INSTANCE}", "{{instance}}"),)),
        Panel("CPU", "percentunit", ((f"rate(process_cpu_seconds_total{INSTANCE}{PER})", "{{instance}}"),)),
        Panel("Lines of log that were lost", "short", ((rate("log_lines_dropped"), "lines"),)),
    )),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The whole file."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        at = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []})
        y += 1
        for number, panel in enumerate(row):
            x = number % COLUMNS * (WIDTH // COLUMNS)
            panels.append(_panel(panel, {"x": x, "y": y, "w": WIDTH // COLUMNS, "h": HEIGHT}))
            if number % COLUMNS == COLUMNS - 1 or number == len(row) - 1:
                y += HEIGHT
    for number, one in enumerate(panels, 1):
        one["id"] = number
    return {
        "uid": "headrace",
        "title": "Headrace",
        "tags": ["headrace", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [_datasource(), _choice("model", "model_name"), _choice("instance", "instance")]
        },
        "panels": panels,
    }


def _panel(panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (expression, legend) in enumerate(panel.series)
        ],
    }
    if panel.kind == "timeseries":
        style = {"fillOpacity": 12, "lineWidth": 2, "showPoints": "never"}
        if panel.stacked:
            style["stacking"] = {"mode": "normal"}
        made["fieldConfig"]["defaults"]["custom"] = style
        made["options"] = {"legend": {"placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "table":
        for target in made["targets"]:
            target |= {"instant": True, "format": "table"}
    return made


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _choice(name: str, label: str) -> dict[str, Any]:
    return {
        "name": name, "label": name.capitalize(), "type": "query", "datasource": SOURCE, "refresh": 2,
        "query": f"label_values(headrace:num_requests_running, {label})",
        "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
