"""The grammar of an answer that says what it likes, and calls tools only as their schemas have it.

Modules, in reading order:

- `grammar`: the grammar as a whole, with the reasoning that may stand before the answer.
- `prose`: free text up to a mark.
- `marked`: answers whose calls begin with a mark (Hermes, Mistral).
- `llama3`, `pythonic`: answers that may be calls from their first character on.

A call, here, is whatever the parsers in `headrace.text.reply` take for one: a text that the parser of a format reads a
call from is in the format's grammar only if the call follows its schema. Where a grammar has to choose between refusing
a text that is none, and admitting one that might be, it refuses.

Import from the modules; this package imports nothing by itself.
"""
