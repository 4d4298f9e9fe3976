"""Measures the profile of this machine for the cost model."""
