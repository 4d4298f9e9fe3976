"""HTTP itself: what would be the same under any API.

- `listener`, `protocol`, `connection`, `write_batch`: sockets, and what one connection may do.
- `body`, `headers`, `errors`: what comes in, what goes out, and how a refusal reads.
- `events`, `json_parts`: streams, and large answers in parts.
- `pace`: bursts, and callers who leave.

Import from the modules; this package imports nothing by itself.
"""
