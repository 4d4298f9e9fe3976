"""Everything between strings and token ids.

- `tokenizer`: a Hugging Face tokenizer folder as ids, exact bytes and chat prompts; `tokenizer_files`,
  `byte_scheme`: its parts.
- `gguf/`: the tokenizer of a GGUF file, from its metadata. `tokenizer_source`: either, by what lies at a path.
- `tokenizer_listing`: a tokenizer as rows for people.
- `detokenizer`: streaming ids to text without splitting a character. `stop`: stop strings. `bad_words`: bad words as
  ids.
- `templates/`: chat messages, and the templates that render them.
- `tools/`: tools of a request, and the calls, reasoning and content of a reply.
- `grammars`, `grammar_store`: compiled grammars.

Import from the modules; this package imports nothing by itself.
"""
