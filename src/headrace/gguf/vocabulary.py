"""A GGUF file that holds a tokenizer and no weights, as llama.cpp has them for its tests of vocabularies."""

from __future__ import annotations

import struct
from pathlib import Path

from headrace.gguf.values import Metadata

VOCABULARY_FILE = "ggml-vocab-model.gguf"
"""Its name in a model's folder; `files.names_model` takes no such file for a model."""


def write_vocabulary(metadata: Metadata, path: Path) -> None:
    """A new file with the keys of a model's metadata that say how text is tokenized, as they are."""
    keys = [key for key in metadata if key == "general.architecture" or key.startswith("tokenizer.")]
    with path.open("xb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)))
        for key in keys:
            name = key.encode()
            file.write(struct.pack("<Q", len(name)) + name + metadata.raw(key))
