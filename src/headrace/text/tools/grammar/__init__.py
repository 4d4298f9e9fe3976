"""Grammars of answers with calls: `fixed` (a call, or text of a given form), `free` (text, and calls that obey their
schemas), `pythonic` (calls in Python's syntax), from the building blocks in `words`.

A call is what the parsers in `headrace.text.tools` read as one. If a grammar must choose between excluding
text that is not a call and admitting a call that violates its schema, it excludes the text.

Import from the modules; this package imports nothing by itself.
"""
