"""Models as data: a family turns a foreign config into a frozen spec; one decoder runs every spec.

Reading order: spec, families (with config_reader and rope_config), source, safetensors_reader, loader, weights,
batch, attention, decoder. What planning and the server need (spec, families, source, shapes, streaming) is free
of torch.
"""
