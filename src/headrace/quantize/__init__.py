"""Makes models of fewer bits a weight, for `headrace quantize`, and writes them in formats that other engines load."""
