"""Headrace and the engines that a user would pick instead, side by side on the same work: `python -m benchmarks.peers`."""
