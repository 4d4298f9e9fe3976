"""Quantises a GGUF file with llama.cpp and an importance matrix; runs in llama.cpp's environment.

python -m benchmarks.quantization.llamacpp_driver IN.gguf OUT.gguf Q4_K_M IMPORTANCE.npz THREADS
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np


def quantize(source: Path, out: Path, mix: str, importance: Path | None, threads: int) -> None:
    """importance: an array of the mean square of each input feature, by the names of tensors; None: none.

    Raises RuntimeError if llama.cpp fails.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{mix}")
    params.nthread = threads
    kept = []
    if importance is not None:
        arrays = {
            name: np.ascontiguousarray(one, dtype=np.float32) for name, one in np.load(importance).items()
        }
        entries = (llama_cpp.llama_model_imatrix_data * (len(arrays) + 1))()
        for entry, (name, array) in zip(entries, arrays.items(), strict=False):
            entry.name, entry.size = name.encode(), array.size
            entry.data = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            kept.append(array)
        params.imatrix = entries
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    if code != 0:
        raise RuntimeError(f"llama_model_quantize gave {code}")


if __name__ == "__main__":
    given = Path(sys.argv[4]) if sys.argv[4] else None
    quantize(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], given, int(sys.argv[5]))
