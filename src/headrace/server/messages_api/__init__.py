"""Anthropic's Messages API, a second dialect of the chats: what differs from OpenAI's is here, the rest is shared.

Modules, in reading order:

- `schemas`: what requests may hold.
- `conversation`: their messages and tools as those of a chat.
- `cache_marks`: how much of a prompt `cache_control` marks.
- `message_builder`: a reply as content blocks, whole or as events.
- `route`: the two routes.
- `dialect`: errors in Anthropic's shape.

Import from the modules; this package imports nothing by itself.
"""
