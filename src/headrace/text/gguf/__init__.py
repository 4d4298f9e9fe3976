"""The tokenizer and chat templates of a GGUF file, from its metadata.

- `build`: metadata -> `Tokenizer`; the entry point.
- `vocabulary`: the metadata, checked. `pretokenizers`: what each value of `tokenizer.ggml.pre` means.
- `pieces`: text -> ids where tokens have scores, by the algorithms in `sentencepiece`; `charsmap`: its normalization.

Import from the modules; this package imports nothing by itself.
"""
