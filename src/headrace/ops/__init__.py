"""Tensor operations behind one table: `reference` is the specification, faster candidates are tested against it."""
