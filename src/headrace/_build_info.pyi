"""Written by CMakeLists.txt at install; absent in a source tree that was never installed."""

NATIVE_MISSING: str
"""Why the native kernels were not built; empty when they were."""
