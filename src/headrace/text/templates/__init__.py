"""Chat templates: `chat` (one template), `trial` (before its first use), `messages` (checked and copied),
`conversation` (tools for templates that know none), `shapes` (what some templates expect).

A template is a program that comes with a model. It runs in a process of its own: `renderer` is the parent's side,
`child` and `sandbox` run there, `wire` is between them, `turns` is for event loops.

Import from the modules; this package imports nothing by itself.
"""
