"""Runs step plans: sequences and block tables as arrays, KV storage, the model, the sampler."""
