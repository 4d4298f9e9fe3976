"""HTTP only: the APIs of OpenAI and Anthropic over an engine that runs in another process.

- `openai/`: the routes of OpenAI's API, and what all APIs share: schemas, prompts, jobs, replies.
- `anthropic/`: the Messages API: its schemas, conversations and answers.
- `http/`: connections, request bodies, errors, server-sent events, JSON in parts.
- `access/`: hosts, origins, keys, rate limits, admission, usage.
- `observability/`: metrics, logs, traces, health.
- `ui/`: the web page, its live feed, and the documentation of the API.
- `batch/`: files of requests, answered without HTTP.
- `service`: what every route needs; `app`: all of it put together; `run`, `shutdown`: the listening process.

Import from the modules; this package imports nothing by itself.
"""
