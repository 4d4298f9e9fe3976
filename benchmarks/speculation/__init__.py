"""Headrace's drafting beside that of llama.cpp, with the same models and prompts."""
