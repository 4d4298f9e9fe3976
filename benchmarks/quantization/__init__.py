"""Headrace's GGUF files beside those of llama.cpp's quantiser, of the same model, calibration and size."""
