"""HTTP itself: the same under any API.

- `listener`, `protocol`, `connection`: sockets, and the limits of one connection.
- `exchange`: the id of the current request, and the code of its error.
- `body`, `strict`: limits of request bodies; fields that are unknown or not implemented.
- `headers`, `errors`, `dialect`: headers of every answer, the form of errors.
- `events`, `json_parts`: streams, and large answers in parts.
- `pace`: bursts of requests, callers who leave, and shutdown.

Import from the modules; this package imports nothing by itself.
"""
