"""Headrace's quantised models beside those of llama.cpp and llm-compressor, of the same model, calibration and size."""
