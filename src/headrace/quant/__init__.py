"""How weights are stored in fewer bits. `format` needs the standard library only, because options and planning read it.

- `format`: the names. `grouped`, `int4`, `int8`, `rounding`: how floats become codes.
- `code_format`, `coded`, `block_formats`: what codes of checkpoints and of GGUF blocks mean. `unpack`, `native`: codes
  out of words, and as the kernels pack them.
"""
