"""The native kernels one by one, beside the peaks of this machine."""
