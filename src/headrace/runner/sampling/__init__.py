"""From logits to tokens.

- `plan`, `state`: the parameters of each row. `edits`, `bad_words`, `token_masks`: changes to logits. `draw`,
  `randomness`: the draw.
- `sampler` (torch), `native` (C++): the two samplers; `output`, `logprobs`: their results. `row_faults`: a row that
  fails alone.

Import from the modules; this package imports nothing by itself.
"""
