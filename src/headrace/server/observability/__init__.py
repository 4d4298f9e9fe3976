"""What a running server reports about itself: metrics, logs, traces, health.

- `record`: what is known of one HTTP request; `observer` makes one for each and reports it at the end.
- `counts`: what is counted; `metrics`: the table of all metrics; `exposition`: its text.
- `logs`: log lines. `spans`, `tracing`: OpenTelemetry.
- `monitor`: /health, /ready, /version, /metrics, /usage, and the tasks behind them.

Import from the modules; this package imports nothing by itself.
"""
