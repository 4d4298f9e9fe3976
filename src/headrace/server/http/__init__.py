"""HTTP itself: what would be the same under any API.

- `listener`, `protocol`, `connection`, `write_batch`: sockets, and what one connection may do.
- `body`, `headers`, `errors`: what comes in, what goes out, and how a refusal reads.
- `events`, `json_parts`: streams, and large answers in parts.
- `pace`, `drain`: bursts, callers who leave, and the end of a server.

Import from the modules; this package imports nothing by itself.
"""
