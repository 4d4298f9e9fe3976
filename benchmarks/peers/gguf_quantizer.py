"""Quantizes a GGUF file with llama.cpp, into one of its mixes of types; runs in llama.cpp's environment.

python -m benchmarks.peers.gguf_quantizer IN.gguf OUT.gguf Q4_K_M
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp


def quantize(source: Path, out: Path, mix: str) -> None:
    """Write `out` in `mix`, a name of llama.cpp's file types.

    Raises ValueError for another name, RuntimeError if llama.cpp fails.
    """
    kind = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{mix}", None)
    if kind is None:
        raise ValueError(f"llama.cpp has no file type {mix}")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = kind
    if (code := llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)) != 0:
        raise RuntimeError(f"llama_model_quantize gave {code}")


if __name__ == "__main__":
    quantize(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
