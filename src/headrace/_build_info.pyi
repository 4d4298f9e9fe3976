"""Written by CMakeLists.txt at install; absent in a source tree that was never installed."""

NATIVE_MISSING: str
"""Why the native kernels were not built; empty when they were."""

SOURCES_SHA256: str
"""Of the C++ sources that the native kernels were built from, as `ops.native_sources` computes it; empty without."""
