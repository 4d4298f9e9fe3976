"""What a running server reports about itself: metrics, logs, traces, health.

- `observer`: makes a record of each HTTP request, and reports it at the end.
- `counts`: counts of the engine and the event loop; `metrics`: the table of all metrics; `exposition`: its text.
- `spans`, `tracing`: OpenTelemetry.
- `monitor`: /health, /ready, /version, /metrics, /usage, and the tasks behind them.

Import from the modules; this package imports nothing by itself.
"""
