"""Puts a running server under load, Headrace or another, and measures it as its clients see it."""
