"""Makes models of fewer bits a weight, for `headrace quantize`, and writes them in formats that other engines load.

- `options`, `calibration`, `matrices`, `job`, `run`: what is asked for, the texts, what becomes of each tensor, and the
  run over it. `walk`, `hessians`: the texts go through a layer at a time, and what methods need of them.
- `methods`: `gptq`, `awq`, `smoothquant`, `fp8`, and before them `rotations` with `hadamard`. `folds`, `plain`, `ends`:
  what changes beside the matrices of layers.
- `scheme`: whole numbers with scales. `formats`, `eight_bit_formats`, `files`: how they are written; `gguf/`: as GGUF.
- `sensitivity`, `budget`, `auto`: bits by matrix. `gate`: limits on what is lost.
"""
