"""The specification of every op, in plain torch. Correct on any device and dtype, not optimised."""

from headrace.ops.reference.attention import paged_attention
from headrace.ops.reference.dense import embedding, gated_linear, linear
from headrace.ops.reference.experts import expert_linear, heads_linear, route
from headrace.ops.reference.kv import round_block_keys, round_block_values, round_rows, write_kv
from headrace.ops.reference.norm import layer_norm, rms_norm
from headrace.ops.reference.recurrent import gated_delta, short_convolution
from headrace.ops.reference.rope import apply_rope, rope_tables

__all__ = [
    "apply_rope",
    "embedding",
    "expert_linear",
    "gated_delta",
    "gated_linear",
    "heads_linear",
    "layer_norm",
    "linear",
    "paged_attention",
    "rms_norm",
    "rope_tables",
    "round_block_keys",
    "round_block_values",
    "round_rows",
    "route",
    "short_convolution",
    "write_kv",
]
