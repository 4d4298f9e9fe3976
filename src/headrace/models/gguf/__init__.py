"""GGUF files as models: metadata as a config, tensors by the names of checkpoints, blocks as weights. No torch here.

Reading order: blocks, names, config, checkpoint. The container itself is read by headrace.gguf.
"""
