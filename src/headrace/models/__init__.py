"""Models as data: a family turns a foreign config into a frozen spec; loaders make the weights of its program.

Reading order: spec, families (with config_reader and rope_config), source, weight_files, safetensors_reader, gguf,
weights, packed_loader; then what runs on torch: loader. The rest is free of torch. `hub/`: models by hub reference;
`packed/`: folders of packed weights.
"""
