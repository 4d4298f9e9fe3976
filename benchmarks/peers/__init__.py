"""Compares Headrace with engines that a user could choose instead, on the same work: `python -m benchmarks.peers`."""
