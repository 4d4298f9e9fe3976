"""What a model says, taken apart as it comes: reasoning, content and calls of tools.

Modules, in reading order:

- `pieces`: what a reply is made of.
- `markers`: markers in text that arrives in pieces.
- `prose`: content around calls, without the white space that only separates them.
- `json_span`, `call_json`: one JSON value, and one `{"name": …, "arguments": …}`, as they come.
- `hermes`, `llama3`, `mistral`, `pythonic`: one format of calls each.
- `formats`: their names, and which of them a chat template means.
- `cut_json`: what is known of arguments that were cut off.
- `reasoning`: the part between `<think>` and `</think>`.
- `reader`: all of it put together.

Every parser takes text in pieces of any size and says the same whatever the pieces are, keeps back only what may be the
beginning of a marker or of a call, and takes time in proportion to the text. None of them ever raises on text: what is
no call is content.

Import from the modules; this package imports nothing by itself.
"""
