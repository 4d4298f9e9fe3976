"""What keys and values depend on besides their tokens. Prefix-cache keys begin with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from headrace.models.spec import ModelSpec
from headrace.plan.resolved import ResolvedConfig

LAYOUT = 1
"""Raised whenever blocks of the same format are laid out, or computed, differently from one version to the next."""


def kv_identity(weights: bytes, spec: ModelSpec, resolved: ResolvedConfig) -> bytes:
    """SHA-256 over the model and the format of its KV. `weights` as models.identity.weights_identity gives them.

    The instruction set is part of it: layouts differ, and so do the last bits of keys and values.
    """
    # BOS and EOS change no key; a packed folder's formats are part of its header, and that of `weights`.
    shown = replace(spec, bos_id=None, eos_ids=(), packed=None, packed_names=())
    parts = (
        LAYOUT, weights.hex(), shown, resolved.device, resolved.kernels or resolved.ops_force or "torch",
        resolved.dtype, resolved.weights_dtype, resolved.quantization, resolved.kv_cache_dtype, resolved.block_size,
        resolved.tensor_parallel_size,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).digest()
