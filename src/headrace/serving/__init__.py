"""Between the core and its callers: requests, results with text, and the clients of an engine.

- `requests/`: one request: admission, text of its completions, results, charges.
- `engine/`: the engine process: its loop, its steps, what it sends.
- `wire/`: the messages between the two processes.
- `client/`: clients of an engine in this process or in another one, and a supervisor that restarts it.
- `grammar/`: grammars are compiled in processes of their own, within limits.
- `metrics`: metrics of an engine. `logs`: log lines of both processes.
- `system`: clocks as arguments, and an end together with the parent process.

Import from the modules; this package imports nothing by itself.
"""
