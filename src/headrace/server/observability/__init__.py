"""What a running server reports about itself: metrics, logs, traces, health.

- `record`: what is known of one HTTP request; `observer` makes one for each and reports it at the end.
- `counts`, `engine_totals`: what is counted; `metrics`: the table of all metrics; `exposition`: its text.
- `logs`, `request_log`: lines of log. `spans`, `tracing`: OpenTelemetry.
- `routes`: /health, /ready, /version, /metrics. `monitor`: all of it put together.

Import from the modules; this package imports nothing by itself.
"""
