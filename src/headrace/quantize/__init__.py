"""Makes models of fewer bits a weight, for `headrace quantize`, and writes them in formats that other engines load.

- `options`, `matrices`, `job`, `run`: what is asked for, what becomes of each tensor, and the run over it, layer by
  layer. `folder_size`: how large a folder becomes. `gguf/`: the same for GGUF files.
- `calibration/`: the texts, which go through a layer at a time, and what methods need of them.
- `methods/`: what each method does with a layer. `rounding/`: the codes of one matrix. `transforms/`: what changes
  beside the codes.
- `formats/`: how codes are stored.
- `bits/`: bits by matrix. `gate`: limits on what is lost.
"""
