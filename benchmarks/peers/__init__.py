"""Headrace beside the engines that a user would pick instead, on the same work: `python -m benchmarks.peers`."""
