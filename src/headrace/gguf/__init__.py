"""GGUF files as containers: header, metadata, places of tensors, split files. Standard library only.

Reading order: types, values, reader, files. What the tensors mean to a model is in models/gguf, and what the
tokenizer's metadata means is in text. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
