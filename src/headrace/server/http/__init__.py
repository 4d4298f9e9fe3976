"""HTTP itself: the same under any API.

- `listener`, `protocol`, `connection`: sockets, and the limits of one connection.
- `body`, `headers`, `errors`, `dialect`: limits of request bodies, headers of every answer, the form of errors.
- `events`, `json_parts`: streams, and large answers in parts.
- `pace`: bursts of requests, callers who leave, and shutdown.

Import from the modules; this package imports nothing by itself.
"""
