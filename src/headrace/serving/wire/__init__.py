"""What the server process and the engine process exchange: `messages`, `translate` (to and from the core's types),
`frames` and `connection` (on a socket).

Import from the modules; this package imports nothing by itself.
"""
