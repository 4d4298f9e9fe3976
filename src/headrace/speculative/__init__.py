"""Speculative decoding: methods that draft tokens, which the model then verifies; how much to draft; training of heads.

- `method`: what each way to draft offers: `ngram`, `history`, `model`, `medusa`, `eagle` (with `eagle_layers` and
  `draft_trees`). `auto`: which of them a model gets. `heads`, `base_model`: folders of heads, and what they need.
- `control`: how much to draft, by `acceptance_rates`, `clock` and `choice`; `resting`: when nothing is drafted.
- `acceptance_rules`, `acceptance_samplers`: other rules for what stays. `written`: blocks that a drafter has filled.
- `training/`: heads are trained.

A draft never changes an answer: see `runner.executor`.
"""
