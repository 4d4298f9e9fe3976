"""Text in and text out: everything between strings and token ids.

Modules, in reading order:

- `tokenizer`: `Tokenizer`, a Hugging Face tokenizer folder as ids, exact bytes and chat prompts.
- `tokenizer_files`: what the JSON files of such a folder say, read once into a frozen object.
- `byte_scheme`: which bytes a token stands for, worked out from the tokenizer's decoder.
- `detokenizer`: `IncrementalDetokenizer`, streaming ids to text without splitting a character.
- `stop`: `StopChecker`, stop strings across any piece borders in linear time.
- `reply`: what a model says, taken apart as it comes: reasoning, content and calls of tools.
- `tools`, `tool_choice`, `conversation`: what a request says of tools, and how templates that know of none are told.
- `grammar_store`: a model's compiled grammars; `grammars` compiles them, and is loaded with the first one. `refusals`:
  those that were of no use.
- `grammar_words`, `tool_rules`: the words of grammars of calls, and what a call looks like inside of its markers.
- `tool_grammar`: the grammar of an answer that must call a tool.
- `free_calls`: grammars of answers that may call tools, and if they do, only by their schemas.
- `messages`: the shape of a chat request, checked and copied to plain data.
- `chat`: `ChatTemplate`, a model's Jinja template compiled and rendered within limits.
- `template_budget`, `template_rules`, `template_compiler`, `template_sandbox`: its limits, and how they are enforced.

Import from the modules; this package imports nothing by itself.
"""
