"""Tensor operations in one table: `reference` is the specification, faster candidates are tested against it."""
