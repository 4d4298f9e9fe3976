"""Speculative decoding: methods that draft tokens, which the model then verifies; how much to draft; training of heads.

A draft never changes an answer: see `runner.executor`.
"""
