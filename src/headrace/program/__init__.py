"""A model as one ordered list of ops, which everything else reads. Standard library only.

- `records`: what a program is made of. `lower` makes one of a spec, with a file for each kind of layer:
  `lower_experts`, `lower_latent`, `lower_per_layer`, `lower_recurrent`, and `lower_layers` for layers that draft.
- `recent`: KV groups of blocks that are not coded yet. `placement`: memory and calls of the native tape.
- `work`: operations of each op.
"""
