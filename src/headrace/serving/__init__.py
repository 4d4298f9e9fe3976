"""Between the core and its callers: results with text, and the clients that drive an engine.

Modules, in reading order:

- `outputs`: the public result types.
- `request_metrics`: what a request's engine statistics mean to its caller.
- `completion`: one completion's tokens as text, with stop strings.
- `output_processor`: core outputs in, text and finished results out.
- `clock`: time as an argument.
- `stepper`: one step of engine and executor, and what happens when it fails.
- `interrupts`, `turn`: one thread at a time, with signal handlers held back.
- `inprocess`: the client of an engine in the same process, for callers of any thread.
- `journal`: what has ended while somebody watches the engine.
- `facts`, `frames`, `messages`, `translate`: what two processes say to each other, and how it is written;
  `messages_snapshot`, `translate_snapshot`: its part about what the engine looks like.
- `parent_death`, `connection`, `pace`, `engine_loop`: the engine process; `grammar_queue`, `grammar_worker`,
  `grammar_checker`, `grammar_pool`, `grammar_gate`: requests whose grammar is compiled first.
- `state`, `child`, `stream`, `process_client`: the client of an engine in another process; `client` is its contract.
- `watchdog`, `backoff`, `supervisor`: a client whose engines may die.
- `generation`, `embedding`, `vectors`: one request at such a client, from submission to result.

Import from the modules; this package imports nothing by itself.
"""
