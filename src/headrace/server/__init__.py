"""HTTP only: the OpenAI-compatible API over an engine that runs in another process.

Modules, in reading order:

- `service`: what every route needs: the engine's client, the tokenizer, the names of the model.
- `schemas`: what requests may hold, every field bounded.
- `structured`: what an output must look like, in each of the ways to ask for it.
- `prompts`: text, token ids and conversations as prompts.
- `job`: one HTTP request's work at the engine.
- `choices`, `logprobs`, `echo`: the parts that answers are made of.
- `reply`: what is read out of a completion: reasoning, content and calls.
- `response_schemas`, `response_input`, `response_builder`, `responses`: /v1/responses.
- `completions`, `chat`, `embeddings`, `tokens`, `models`, `health`: the routes.
- `page`: the web page at `/`, whose files lie in a folder of that name.
- `latencies`, `lane_names`, `feed`, `live`: what the page shows of the engine while it runs.
- `events`, `disconnect`: streams of server-sent events, and callers who leave.
- `answers`, `openapi`, `api_page`: what the routes say of themselves, to machines and to people.
- `explanation`: what the engine did with a prompt, and why, for whoever asks.
- `seeing`: metrics, logs and traces, in a package of their own.
- `errors`, `body_limit`: what is refused, and how that reads.
- `app`: all of it put together.
- `listener`, `connection_limits`, `guarded_protocol`: connections, and their limits.
- `signals`, `drain`: how a server ends.
- `run`: the listening process.
- `local_call`, `batch_input`, `batch_output`, `batch`, `batch_run`: files of requests, answered without HTTP.

Import from the modules; this package imports nothing by itself.
"""
