"""The codes of one matrix. `scheme`: whole numbers with scales, and the nearest ones. `gptq`: columns one after the
other. `refit`: scales for codes that have been chosen. `shrinkage`: rows that shrink less. `fp8`: 8-bit floats."""
