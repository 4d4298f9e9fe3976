"""One request's way from its checked body to the engine and back: the same under every API.

In this order: `fields` and `structured` (what bodies of several APIs hold), `prompts` (text to token ids), `job` (the
request's work at the engine) or `vectors` (embeddings), `bounds` and `gate` (admission and charges; the only way to
the engine), `reply` (reasoning, content and calls) and `logprobs`.

- `service`: what every route needs.
- `record`: what is known of one HTTP request; `tallies`: what requests add up to.

Import from the modules; this package imports nothing by itself.
"""
