"""Measurements against other engines; not part of the installed package."""
