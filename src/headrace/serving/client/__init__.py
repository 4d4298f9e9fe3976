"""Clients of an engine.

- `base`: the contract. `inprocess`: an engine in this process. `process`: one in another process; `child` starts it.
- `stream`, `source`, `pending`: one request's outputs, on their way to the caller.
- `supervisor`: a client that outlives its engines.

Import from the modules; this package imports nothing by itself.
"""
