"""OpenAI's API: routes, and the parts that other APIs share with them.

A request passes, in this order: a route (`chat`, `completions`, `embeddings`, `responses/`), its `schemas`,
`prompts` (text to token ids), `job` (the request's work at the engine), `reply` (reasoning, content and calls),
`choices` and `logprobs` (the answer).

- `request_fields`: fields that are refused or ignored; `structured`: the grammar of an output.
- `models`: what is served, and its tokenizer.

Import from the modules; this package imports nothing by itself.
"""
