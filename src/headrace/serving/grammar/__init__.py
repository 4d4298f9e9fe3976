"""Grammars, compiled beside the engine's steps: `gate` holds their requests until then, `queue` orders them fairly
between users, `pool` compiles, and `checker` and `worker` try each grammar in a process of its own first.

Import from the modules; this package imports nothing by itself.
"""
