"""HTTP only: the APIs of OpenAI, Anthropic and Ollama over an engine that runs in another process.

From the top to the bottom; imports point downward only:

- `run`, `shutdown`: the listening process. `batch/`: files of requests, answered without HTTP.
- `app`: builds the web application.
- `ui/`: the web page, its live feed, and the documentation of the API.
- `openai/`, `anthropic/`, `ollama/`: routes, schemas and answers of an API. None imports another.
- `observability/`: metrics, traces, health, usage.
- `requests/`: what all APIs share, from a checked body to the engine and back.
- `access/`: hosts, origins, keys, rate limits.
- `http/`: connections, request bodies, errors, server-sent events, JSON in parts.

Import from the modules; this package imports nothing by itself.
"""
