"""The native CPU kernels as candidates of the op table."""
