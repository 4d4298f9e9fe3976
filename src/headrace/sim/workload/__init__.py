"""Requests to measure or to simulate with: lengths, arrivals and latency targets, from a seed."""
