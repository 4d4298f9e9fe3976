"""The files that engines load, written from a model's Hugging Face folder, each in an environment that can write it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.peers import GGUF_WRITER, Peer
from benchmarks.peers.workplace import ROOT, Workplace

ONNX_OPTIONS = ("block_size=32", "accuracy_level=4")
"""Groups of 32, as in GGUF's formats, and products in int8, as the builder recommends for CPUs."""

MAKE_LIMIT_S = 1200.0


def model_file(peer: Peer, model: str, format_: str, workplace: Workplace) -> Path:
    """The file or folder that `peer` loads."""
    if peer.files == "gguf":
        return workplace.gguf(model, gguf_kind(peer, format_))
    return workplace.onnx(model, format_) if peer.files == "onnx" else workplace.model(model)


def gguf_kind(peer: Peer, format_: str) -> str:
    """GGUF's name of the type of matrices in the file that `peer` loads."""
    return peer.formats[format_].removeprefix("GGUF ")


def missing_files(
    peers: Sequence[Peer], model: str, workplace: Workplace
) -> Iterator[tuple[Peer, str, Path]]:
    """(engine, format, file) of every file that still has to be made, each once."""
    seen = set()
    for peer in peers:
        for format_ in peer.formats:
            file = model_file(peer, model, format_, workplace)
            if peer.files != "folder" and file not in seen and not file.exists():
                seen.add(file)
                yield peer, format_, file


def make_file(peer: Peer, model: str, format_: str, workplace: Workplace) -> bool:
    """Write the file that `peer` loads. Returns whether it worked; the log of the same name has the output."""
    folder, file = workplace.model(model), model_file(peer, model, format_, workplace)
    part = file.with_name(f"{file.name}.part")
    if peer.files == "gguf":
        python = workplace.python(GGUF_WRITER.name)
        words = ["benchmarks.peers.gguf_writer", str(folder), str(part), gguf_kind(peer, format_)]
    else:
        python = workplace.python(peer.name)
        places = ["-m", str(folder), "-o", str(part), "-c", str(workplace.downloads / "onnx")]
        words = ["onnxruntime_genai.models.builder", *places, "-p", format_, "-e", "cpu"]
        words += ["--extra_options", *ONNX_OPTIONS]
    if not python.is_file():
        return False
    workplace.logs.mkdir(parents=True, exist_ok=True)
    with (workplace.logs / f"make-{file.name}.log").open("w") as log:
        command = ["nice", str(python), "-m", *words]
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=MAKE_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
    if done.returncode == 0:
        part.rename(file)  # only a complete file gets the name
    return done.returncode == 0
