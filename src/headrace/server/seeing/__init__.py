"""What a running server tells of itself: metrics, a line of log a request, traces.

Modules, in reading order:

- `record`: what is known of one HTTP request; `observer` makes one for each and hands it on at the end.
- `histogram`, `tallies`: what the server counts.
- `engine_totals`: what its engines have counted, summed over restarts.
- `loop_lag`: how late the event loop is.
- `table`, `exposition`, `route`: all of that as /metrics.
- `log_format`, `log_writer`, `request_log`: logs.
- `spans`, `tracing`: OpenTelemetry.
- `sight`: all of it put together.
"""
