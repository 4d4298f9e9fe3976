"""Anthropic's Messages API: what differs from OpenAI's is here, the rest is shared.

- `route`: POST /v1/messages and /v1/messages/count_tokens.
- `schemas`: what requests may hold, `cache_control` among it; `conversation`: their messages and tools as those of a
  chat.
- `answers`: content blocks, the events of a stream, errors.

Import from the modules; this package imports nothing by itself.
"""
