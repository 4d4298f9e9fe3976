"""Chat templates: `messages` (checked and copied), `conversation` (tools for templates that know none), `chat`
(compiled and rendered within limits).

Import from the modules; this package imports nothing by itself.
"""
