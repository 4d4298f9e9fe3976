"""Grammars, compiled off the engine's steps: `gate` holds back their requests, `queue` takes users in turn, `pool`
compiles, `checker` and `worker` try each grammar in a process of its own first.

Import from the modules; this package imports nothing by itself.
"""
