"""HTTP only: the APIs of OpenAI, Anthropic and Ollama over an engine that runs in another process.

- `openai/`: the routes of OpenAI's API, and what all APIs share: schemas, prompts, jobs, replies.
- `anthropic/`, `ollama/`: the same for their APIs: schemas, conversations and answers.
- `http/`: connections, request bodies, errors, server-sent events, JSON in parts.
- `access/`: hosts, origins, keys, rate limits; bounds, admission and charges of requests.
- `observability/`: metrics, logs, traces, health, usage.
- `ui/`: the web page, its live feed, and the documentation of the API.
- `batch/`: files of requests, answered without HTTP.
- `service`: what every route needs; `app`: builds the web application; `run`, `shutdown`: the listening process.

Import from the modules; this package imports nothing by itself.
"""
