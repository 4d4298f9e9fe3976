"""Runs step plans: sequences and block tables as arrays, KV storage, the model, the sampler.

- `executor`: a step plan in, tokens out. `packing`, `step`, `block_tables`: a plan as arrays. `branches`,
  `verification`, `drafting`: drafts. `pooling`: vectors of prompts. `sampling/`: logits to tokens.
- `model`: what a loaded model offers. `backend` chooses one of two ways to run it:
- native: `native_backend`, `native_decoder`, `native_layers`, `native_kv`, and `tape` with `tape_memory`;
- in torch: `torch_backend`, `torch_decoder`, `torch_experts`, `torch_layers`, `torch_model`, `batch`, `kv_storage`.
- `loading`: how one model is stored.
"""
