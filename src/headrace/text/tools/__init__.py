"""Tools: the fields of a request, and how a reply is parsed into reasoning, content and calls.

- `request`: the fields `tools` and `tool_choice`.
- `reader`: a whole reply; `reasoning`: its part between marks such as `<think>` and `</think>`; `pieces`: what it
  consists of; `harmony`: whole replies of gpt-oss.
- `formats`: formats of calls by name. `hermes`, `llama3`, `mistral`, `marked_json`, `deepseek`: JSON with marks;
  `pythonic`: Python's syntax; `tagged`: text between tags, with `value_kinds` for its types; `gemma`: objects without
  quotes. `call_parser`: what they share; `call_json`, `json_text`: JSON.
- `grammar/`: grammars that make a model write calls in its format.

Every parser accepts text in pieces of any size and gives the same result for any pieces. It holds back only what
may be the beginning of a marker or a call, and takes linear time. None raises on text: what is not a call is content.

Import from the modules; this package imports nothing by itself.
"""
