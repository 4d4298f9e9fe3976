"""The engine process.

- `loop`: messages in, steps, messages out. `stepper`: one step. `outbox`: what is sent.
- `state`: what others know of an engine. `turn`: one thread at a time.
- `watchdog`: how long a step may take, and how a hung engine is noticed.

Import from the modules; this package imports nothing by itself.
"""
