"""A GGUF file as a safetensors folder of floats, for `headrace quantize`, which takes floats alone.

    python -m benchmarks.quantization.decoded model.gguf folder

So methods can be compared on a model of which only a quantised file is at hand: its decoded weights are the original.
The tokenizer must be one that a tokenizer.json can hold: one of merges ("gpt2" in the file's words).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from headrace.errors import HeadraceError, UnsupportedModel
from headrace.models.families import read_spec
from headrace.models.source import resolve_model
from headrace.models.stored import open_weights
from headrace.text.tokenizer_source import open_tokenizer


def decode(file: Path, folder: Path) -> None:
    """Raises HeadraceError for a file that cannot be read, and FileExistsError for a folder that is there."""
    source = resolve_model(str(file))
    if source.files is None:
        raise UnsupportedModel(f"{file} is no GGUF file")
    assert source.path is not None
    stored = open_weights(source, read_spec(source.config, source.generation_config))
    folder.mkdir(parents=True)
    open_tokenizer(source.path).save(folder)
    tensors = {}
    for name in sorted({*stored.checkpoint.names(), *stored.coded}):
        rows = [np.asarray(values, dtype=np.float32) for _, values in stored.floats(name)]
        tensors[name] = torch.from_numpy(np.concatenate(rows))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").write_text(
        json.dumps(dict(source.generation_config)), encoding="utf-8"
    )
    config = {**source.config, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantization.decoded",
        description="Decode a GGUF file into a folder of floats.",
    )
    parser.add_argument("file", type=Path, help="GGUF file")
    parser.add_argument("folder", type=Path, help="where to write; it must not exist yet")
    args = parser.parse_args(words)
    try:
        decode(args.file, args.folder)
    except (HeadraceError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
