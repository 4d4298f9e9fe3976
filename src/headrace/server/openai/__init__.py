"""OpenAI's API: what differs from the others is here, the rest is in `headrace.server.requests`.

- `chat`, `completions`, `embeddings`, `responses/`: the routes. `models`: what is served, and its tokenizer.
- `schemas`: what requests may hold; `request_fields`: fields that are refused or ignored.
- `choices`, `message`, `logprobs`: what answers are made of.

Import from the modules; this package imports nothing by itself.
"""
