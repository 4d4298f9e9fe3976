"""Ollama's API: what differs from OpenAI's is here, the rest is shared.

- `route`: /api/chat, /api/generate, /api/embed, /api/embeddings. `about`: /api/tags, /api/show, /api/ps, /api/version.
- `schemas`: what requests may hold; `conversation`: their messages as those of a chat.
- `answers`: lines of JSON, and errors.

Import from the modules; this package imports nothing by itself.
"""
