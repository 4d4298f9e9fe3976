"""Quantised GGUF files: `grids` has the numbers that a block can hold, `search` finds the best scales for weights,
`rounding` chooses the codes, `layouts` knows what each architecture's file says, `run` writes it."""
