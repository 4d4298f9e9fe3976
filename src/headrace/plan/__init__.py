"""What a run will need before it starts: standard library only, never torch. In this order:

- `units`, `hardware` with `hardware_table`, `dtypes`, `formats`: sizes as text, machines, types.
- `weights`, `weight_formats`, `kernels`: how matrices are stored, and whether the native kernels run a model.
- `activations`, `arena`: memory of a step. `kv`, `kv_identity`, `eviction`: keys and values. `draft_methods`,
  `drafts`: what drafts.
- `fit`: what memory has room for. `scheduling`, `resolved`: every setting with its value and reason.
- `ledger`, `report`, `listing`: memory, plan and program as text.
- `vllm_options`: options of vLLM that have another name here, or no effect.
"""
