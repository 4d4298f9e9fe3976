"""Headrace beside llama.cpp on one GGUF file for each kind of model: mixtures, hybrids, long contexts."""
