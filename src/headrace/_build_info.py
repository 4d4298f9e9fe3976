"""Written by CMakeLists.txt at install."""

NATIVE_MISSING = ""
"""Why the native kernels were not built; empty when they were."""
