"""Quantised safetensors checkpoints: a file a method says which tensors stand for a weight, and how they become codes.

`methods` finds the method in a config, `layout` is what methods have in common, `matrices` applies a method to a
checkpoint.
"""
