"""What a running server reports about itself: metrics, logs, traces, health.

- `observer`: makes a record of each HTTP request, and reports it at the end.
- `metrics`: the table of all metrics; `exposition`: its text; `lag`: how late the event loop runs.
- `spans`, `tracing`: OpenTelemetry.
- `monitor`: /health, /ready, /version, /metrics, /usage, and the tasks behind them.

Import from the modules; this package imports nothing by itself.
"""
