"""Models as data: a family turns a foreign config into a frozen spec; loaders make the weights of its program.

- `spec`, `rope`, `streaming`: the description of a model. `families/` with `config_reader` and `rope_config` read it
  from a config; `shapes/` has configs of well-known models; `mtp`, `draft_layers`: layers that draft.
- `source`: a model's name as files; `hub/`: by hub reference. `generation_config`, `identity`: what else lies there.
- `names`, `weight_files`, `stored`: which tensors are which weights. `safetensors_reader`, `gguf/`, `quantized/`,
  `family_checkpoint`: where they lie, and how.
- `weights`: made by `packed_loader` (`packing`, `tensor_sources`) for the kernels, by `loader` for torch, from
  `random_weights` for shapes. `packed/`: folders of packed weights. `floats`: types that numpy lacks.

Only `loader` needs torch.
"""
