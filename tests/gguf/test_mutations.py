"""Damaged and hostile GGUF files: one typed error or a right load, in memory bounded by the file's size."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ModelError
from headrace.models.families import read_spec, weight_names
from headrace.models.gguf.checkpoint import GGUFCheckpoint
from headrace.models.weights import check_tensors
from headrace.program.lower import lower
from tests.gguf_bytes import model

NUMBERS = [0, 1, 2, 31, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1]
ROOM = 1 << 20
"""Bytes that the program may use besides some multiple of the file."""


def mutate(rng: random.Random, raw: bytes, header: int) -> bytes:
    """One to three changes, most of them in the header."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        end = len(data) if rng.random() < 0.1 else min(header, len(data))
        at = rng.randrange(max(1, end))
        kind = rng.randrange(7)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFF_FFFF)
        elif kind == 4:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 5:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        else:
            del data[at:]
    return bytes(data)


def read_everything(path: Path) -> None:
    """What loading does, without packing; decodes metadata too, as a tokenizer would."""
    checkpoint = GGUFCheckpoint(path)
    for key in checkpoint.model.metadata:
        checkpoint.model.metadata[key]
    spec = read_spec(checkpoint.config, checkpoint.generation_config)
    names = weight_names(spec)
    program = lower(spec, names)
    check_tensors(checkpoint, program, names)
    for name, shape in program.tensors().items():
        values = checkpoint.array(name)
        assert values.shape == shape and values.dtype in (np.float32, np.float16, np.uint16)
    for matrix in checkpoint.coded().values():
        assert matrix.decode().codes.shape == matrix.tensors[0].shape


def outcomes(count: int, seed: int, folder: Path, kind: int, arch: str) -> dict[str, int]:
    """How `count` mutated files end: by the name of the error, or "loaded"."""
    rng = random.Random(seed)
    file = model(arch, kind=kind)
    raw, header = file.raw(), len(file.header())
    path = folder / "m.gguf"
    found: dict[str, int] = {}
    tracemalloc.start()
    try:
        for _ in range(count):
            data = mutate(rng, raw, header)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                read_everything(path)
                end = "loaded"
            except ModelError as error:
                end = type(error).__name__
                assert len(str(error)) < 1000 and "\n" not in str(error), str(error)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 16 * len(data) + ROOM, f"{peak} bytes for a file of {len(data)}: {end}"
            found[end] = found.get(end, 0) + 1
    finally:
        tracemalloc.stop()
    return found


@pytest.mark.parametrize(("arch", "kind"), [("llama", 0), ("qwen2", 8), ("qwen3", 2)])
def test_mutated_files(arch: str, kind: int, tmp_path: Path) -> None:
    found = outcomes(120, 11 + kind, tmp_path, kind, arch)
    assert found["CheckpointError"] > 30 and found["loaded"] > 5, found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("arch", "kind"), [("llama", 0), ("qwen3", 2)])
def test_many_mutated_files(arch: str, kind: int, seed: int, tmp_path: Path) -> None:
    """10,000 in all."""
    outcomes(1000, 1000 + seed, tmp_path, kind, arch)


def test_the_unharmed_files_load(tmp_path: Path) -> None:
    for arch in ("llama", "qwen2", "qwen3"):
        for kind in (0, 1, 2, 8, 30):
            read_everything(model(arch, kind=kind).write(tmp_path / "m.gguf"))
