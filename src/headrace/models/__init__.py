"""Models as data: a family turns a foreign config into a frozen spec; one decoder runs every spec.

Reading order: spec, families (with config_reader and rope_config), source, safetensors_reader, weights, stacks,
packed_loader; then what runs on torch: loader, batch, attention, decoder. The rest is free of torch.
"""
