"""What prefix-cache keys begin with: equal for equal models in equal formats, and for nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.prefix_cache import BlockKeys
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import BUNDLED_FOLDER

TALE = BUNDLED_FOLDER / "tale"

ALWAYS: Mapping[str, object] = {
    "model": "tale", "num_threads": 1, "num_kv_blocks": 64, "dtype": "bfloat16",  # not the type that this CPU prefers
}  # fmt: skip


def root(**options: object) -> bytes:
    """The parent of all first blocks of an engine's sequences."""
    config = EngineConfig.from_kwargs(**{**ALWAYS, **options})
    return assemble(config).engine.scheduler.kv.keys("").root


OTHERS: Mapping[str, Mapping[str, object]] = {
    "another model": {"model": "tale-draft"},
    "another type": {"dtype": "float32"},
    "another type of the cache": {"kv_cache_dtype": "int8"},
    "floats of 8 bits in the cache": {"kv_cache_dtype": "fp8"},
    "4 bits in the cache": {"kv_cache_dtype": "int4"},
    "other weights in the same files": {"quantization": "int8"},
    "another block size": {"block_size": 8},
    "another retention": {"attention_sinks": 4, "sliding_window": 60},
    "other kernels": {"ops_force": "torch"},
}


def test_a_root_is_the_models_and_its_formats() -> None:
    plain = root()
    found = {name: root(**options) for name, options in OTHERS.items()}
    assert plain != BlockKeys("", 64).root
    assert len({plain, *found.values()}) == len(OTHERS) + 1
    assert root(max_num_seqs=3, num_kv_blocks=70, seed=5, scheduling_policy="fair") == plain


def test_a_root_is_the_same_in_another_process() -> None:
    """Whatever the order of its hashes."""
    code = "import tests.plan.test_kv_identity as t; print(t.root().hex())"
    reported = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"}, check=True, capture_output=True,
        text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert reported.stdout.strip() == root().hex()


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_other_weights_have_another_root(place: str, tmp_path: Path) -> None:
    """A change of one byte of one tensor, with the file's size and time as they were, too."""
    copy = tmp_path / "copy"
    shutil.copytree(TALE, copy, copy_function=shutil.copy2)
    assert root(model=str(copy)) == root()
    checkpoint = Checkpoint(copy)
    entry = checkpoint.entry(sorted(checkpoint.names())[3])
    assert entry is not None
    size = entry.end - entry.begin
    at = {"first": entry.begin, "middle": entry.begin + (size - 256) // 3, "last": entry.end - 1}[place]
    file = checkpoint.paths()[0]
    times = file.stat()
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == TALE.joinpath(file.name).stat().st_mtime_ns
    assert root(model=str(copy)) != root()


def test_a_file_that_was_written_again_has_another_root(tmp_path: Path) -> None:
    """Only some bytes are read; other changes are detected by the file's time alone."""
    copy = tmp_path / "copy"
    shutil.copytree(TALE, copy, copy_function=shutil.copy2)
    file = Checkpoint(copy).paths()[0]
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert root(model=str(copy)) != root()


def test_random_weights_of_another_seed_are_others() -> None:
    roots = {root(model="shape:tiny", seed=seed) for seed in (1, 2)}
    assert len(roots) == 2 and root(model="shape:tiny", seed=1) in roots
