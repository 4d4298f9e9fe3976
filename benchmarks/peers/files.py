"""The files that engines load, written from a model's Hugging Face folder, each in an environment that can write it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.peers import GGUF, GGUF_WRITER, LLAMACPP, ONLY, Peer
from benchmarks.peers.workplace import ROOT, Workplace

ONNX_OPTIONS = ("block_size=32", "accuracy_level=4")
"""Groups of 32, as in GGUF's formats, and products in int8, as the builder recommends for CPUs."""

QUANTIZED = ("Q4_K_M",)
"""Mixes of types, which llama.cpp makes of the file in BF16; the others are written tensor by tensor."""

MAKE_LIMIT_S = 1200.0


def model_file(peer: Peer, model: str, format_: str, workplace: Workplace) -> Path:
    """The file or folder that `peer` loads."""
    if kind := gguf_kind(peer, format_):
        return workplace.gguf(model, kind)
    return workplace.onnx(model, format_) if peer.files == "onnx" else workplace.model(model)


def gguf_kind(peer: Peer, format_: str) -> str | None:
    """GGUF's name of the types of matrices in the file that `peer` loads, None where it loads no GGUF file."""
    name = peer.formats[format_]
    return name.removeprefix(GGUF) if name.startswith(GGUF) else None


def missing_files(peers: Sequence[Peer], model: str, workplace: Workplace) -> list[tuple[Peer, str, Path]]:
    """(engine, format, file) of every file that still has to be made, each once, after those that it is made of."""
    found = {}
    for peer in peers:
        for format_ in peer.formats:
            file = model_file(peer, model, format_, workplace)
            if model in ONLY.get(format_, (model,)) and file != workplace.model(model) and not file.exists():
                found[file] = (peer, format_, file)
    return sorted(found.values(), key=lambda one: gguf_kind(*one[:2]) in QUANTIZED)


def make_file(peer: Peer, model: str, format_: str, workplace: Workplace) -> bool:
    """Write the file that `peer` loads. Returns whether it worked; the log of the same name has the output."""
    folder, file = workplace.model(model), model_file(peer, model, format_, workplace)
    part = file.with_name(f"{file.name}.part")
    if (kind := gguf_kind(peer, format_)) in QUANTIZED:
        python = workplace.python(LLAMACPP.name)
        words = ["benchmarks.peers.gguf_quantizer", str(workplace.gguf(model, "BF16")), str(part), kind]
    elif kind is not None:
        python = workplace.python(GGUF_WRITER.name)
        words = ["benchmarks.peers.gguf_writer", str(folder), str(part), kind]
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
