"""Measurements against other engines; no part of the installed package."""
