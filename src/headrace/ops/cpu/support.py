"""Which models the native CPU kernels serve, and why not the others. Standard library only.

The kernels of one instruction set serve a whole model or none of it: packed weights and the KV cache have layouts of
their own (docs/kernels.md), and one call runs the whole tape.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from headrace.ops.table import DENSE, WEIGHT_OPS, Candidate, Facts, OpKey

INSTRUCTION_SETS = ("amx", "avx512", "avx512_vnni", "avx2", "portable")
"""Best first on most CPUs; `available_kernels` knows the order of this one."""
EMULATED = "amx-emulated"
"""The AMX code with its tile instructions emulated in plain C++: slow, for tests on other machines."""

BFLOAT16_SETS = ("amx", "avx512", EMULATED)
"""Sets that multiply bfloat16 with instructions of their own; the others are faster in float32."""

DTYPES = ("float32", "bfloat16")
KV_DTYPES = ("float32", "bfloat16", "int8", "fp8", "int4")
HEAD_DIM_STEP = 16
HEAD_INPUT_STEP = 64
"""A product with a matrix a head reads a multiple of this many features of each: rows are not padded there."""
MAX_KEY_DIM = 256
"""Of the gated delta rule."""

_HEAD_OPS = ("apply_rope", "write_kv", "paged_attention")

# The function of headrace._native that tests and benchmarks call for an op; a model runs them all through its tape.
_FUNCTIONS = {
    "embedding": "embed",
    "rms_norm": "encode",
    "layer_norm": "encode",
    "rope_tables": "rotations",
    "apply_rope": "rope_and_write",
    "write_kv": "rope_and_write",
    "paged_attention": "paged_attention",
    "linear": "linear",
    "gated_linear": "linear",
    "route": "route",
    "expert_linear": "expert_linear",
    "heads_linear": "heads_linear",
    "short_convolution": "Tape.convolution",
    "gated_delta": "Tape.gated_delta",
}


def native_facts(
    kernels: Sequence[str],
    note: str,
    head_dims: Sequence[int],
    latents: Sequence[tuple[int, int]] = (),
    states: Sequence[tuple[int, int]] = (),
) -> dict[str, object]:
    """Facts for the native candidates: the usable sets (or, in `note`, why there are none), and the model's heads.

    latents: (features of a head's key without rope, of the latent) of latent attention. states: (key, value) sizes of
    recurrent states.
    """
    return {
        "kernels": tuple(kernels),
        "kernels_note": note,
        "head_dims": tuple(head_dims),
        "latents": tuple(latents),
        "states": tuple(states),
    }


def candidates() -> list[Candidate]:
    """A candidate for every op and instruction set, best set first."""
    return [
        Candidate(
            op,
            name,
            f"headrace._native:{function}",
            functools.partial(_refusal, name),
            suite=True,
            on_demand=name == EMULATED,
        )
        for name in (*INSTRUCTION_SETS, EMULATED)
        for op, function in _FUNCTIONS.items()
    ]


def _refusal(name: str, key: OpKey, facts: Facts) -> str | None:
    """Why the kernels of instruction set `name` cannot serve the key; None: they can."""
    if key.device != "cpu":
        return "runs on CPUs only"
    kernels, head_dims = facts.get("kernels", ()), facts.get("head_dims", ())
    latents, states = facts.get("latents", ()), facts.get("states", ())
    assert isinstance(kernels, tuple) and isinstance(head_dims, tuple)
    assert isinstance(latents, tuple) and isinstance(states, tuple)
    if not kernels:
        return str(facts.get("kernels_note") or "no native kernels here")
    if name not in kernels:
        return "not on this CPU, or not in this build"
    if key.dtype not in DTYPES:
        return f"computes in {' or '.join(DTYPES)}, not in {key.dtype}"
    if key.op in _HEAD_OPS:
        for dim in head_dims:
            if dim % HEAD_DIM_STEP:
                return f"heads of {dim} channels are not a multiple of {HEAD_DIM_STEP}"
    if key.op == "heads_linear":
        for key_dim, latent in latents:
            if key_dim % HEAD_INPUT_STEP or latent % HEAD_INPUT_STEP:
                return f"latents of {latent} and keys of {key_dim} channels are not multiples of {HEAD_INPUT_STEP}"
    if key.op == "gated_delta":
        for key_dim, value_dim in states:
            if value_dim % HEAD_DIM_STEP:
                return f"recurrent states of {value_dim} channels are not a multiple of {HEAD_DIM_STEP}"
            if key_dim > MAX_KEY_DIM:
                return f"recurrent states with keys of {key_dim} channels, and {MAX_KEY_DIM} are the most"
    if key.op in WEIGHT_OPS and key.format == DENSE:
        return "reads packed weights only"
    return None
