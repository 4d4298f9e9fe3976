"""Names of tensors in GGUF files, and the names that checkpoints of the same family give them.

https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py lists them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from headrace.models.names import LAYER, WHOLE, WeightNames

GGUF_NAMES = WeightNames(
    embed="token_embd",
    positions="position_embd",
    embed_norm="token_embd_norm",
    final_norm="output_norm",
    head="output",
    input_norm="blk.{i}.attn_norm",
    mixer_post_norm="blk.{i}.post_attention_norm",
    post_norm="blk.{i}.ffn_norm",
    feed_forward_post_norm="blk.{i}.post_ffw_norm",
    query="blk.{i}.attn_q",
    key="blk.{i}.attn_k",
    value="blk.{i}.attn_v",
    qkv="blk.{i}.attn_qkv",
    query_down="blk.{i}.attn_q_a",
    query_down_norm="blk.{i}.attn_q_a_norm",
    query_up="blk.{i}.attn_q_b",
    latent="blk.{i}.attn_kv_a_mqa",
    latent_norm="blk.{i}.attn_kv_a_norm",
    latent_up="blk.{i}.attn_kv_b",
    out="blk.{i}.attn_output",
    query_norm="blk.{i}.attn_q_norm",
    key_norm="blk.{i}.attn_k_norm",
    sinks="blk.{i}.attn_sinks.weight",
    layer_scale="blk.{i}.layer_output_scale.weight",
    per_layer_embed="per_layer_token_embd",
    per_layer_input="per_layer_model_proj",
    per_layer_input_norm="per_layer_proj_norm",
    per_layer_gate="blk.{i}.inp_gate",
    per_layer_out="blk.{i}.proj",
    per_layer_post_norm="blk.{i}.post_norm",
    delta_qkv="blk.{i}.attn_qkv",
    delta_gate="blk.{i}.attn_gate",
    delta_beta="blk.{i}.ssm_beta",
    delta_decay="blk.{i}.ssm_alpha",
    delta_qkv_gate="blk.{i}.ssm_in",
    delta_beta_decay="blk.{i}.ssm_ba",
    delta_conv="blk.{i}.ssm_conv1d",
    delta_rate="blk.{i}.ssm_a",
    delta_time="blk.{i}.ssm_dt.bias",
    delta_norm="blk.{i}.ssm_norm",
    delta_out="blk.{i}.ssm_out",
    conv_in="blk.{i}.shortconv.in_proj",
    conv="blk.{i}.shortconv.conv",
    conv_out="blk.{i}.shortconv.out_proj",
    gate="blk.{i}.ffn_gate",
    up="blk.{i}.ffn_up",
    gate_up="",
    down="blk.{i}.ffn_down",
    router="blk.{i}.ffn_gate_inp",
    router_norm="blk.{i}.ffn_gate_inp.scale",
    expert_scale="blk.{i}.ffn_down_exps.scale",
    experts_norm="blk.{i}.pre_ffw_norm_2",
    experts_post_norm="blk.{i}.post_ffw_norm_2",
    dense_post_norm="blk.{i}.post_ffw_norm_1",
    choice_bias="blk.{i}.exp_probs_b.bias",
    expert_gate="blk.{i}.ffn_gate_exps",
    expert_up="blk.{i}.ffn_up_exps",
    expert_down="blk.{i}.ffn_down_exps",
    shared_router="blk.{i}.ffn_gate_inp_shexp",
    shared_gate="blk.{i}.ffn_gate_shexp",
    shared_up="blk.{i}.ffn_up_shexp",
    shared_down="blk.{i}.ffn_down_shexp",
    ignored=(".attn_rot_embd.weight",),
)

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
IN_CONFIG = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Divisors of rope's frequencies: read as a part of the config."""

CONVOLUTIONS = ("ssm_conv1d", "shortconv.conv")
"""Parts of a layer that are [channels, width]: a program has them as vectors."""

RATES = "ssm_a"
"""The part of a layer that holds a negative rate for each head, whose logarithm checkpoints have."""

IN_FLOAT32 = frozenset({"ffn_gate_inp", "ffn_gate_inp_shexp", *CONVOLUTIONS})
"""Parts of a layer with several axes that files of every type hold as float32."""

_IN_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)")

_NEXT = {
    "nextn.eh_proj": "join",
    "nextn.enorm": "embedding_norm",
    "nextn.hnorm": "state_norm",
    "nextn.shared_head_norm": "final_norm",
}
"""Parts of a layer that predicts further tokens, and the fields of `MTPNames` that name them."""

_GATE_AND_UP = "ffn_gate_up_exps"
"""The gates of an expert above its other rows."""

_ONE_EXPERT = re.compile(r"(ffn_gate|ffn_up|ffn_down)\.(0|[1-9]\d{0,3})")
"""In files of early 2024."""


class NameTable:
    """From a GGUF tensor's name to the name in a checkpoint of the family whose names are `family`.

    renamed: parts of a layer that the file has by other names, and the names that most files give them. layers: those
    of the model; `more` layers after them predict further tokens. The first of these has the names of `family.mtp`
    where there are some; tensors of the others are not read.
    """

    def __init__(
        self,
        family: WeightNames,
        renamed: Mapping[str, str] = MappingProxyType({}),
        layers: int = 0,
        more: int = 0,
    ) -> None:
        self._renamed = renamed
        self._further, self._layers = range(layers, layers + more), layers
        self._mtp = family.mtp
        self._names: dict[str, str] = {}
        for field in fields(WeightNames):
            gguf, other = getattr(GGUF_NAMES, field.name), getattr(family, field.name)
            if field.name.startswith(("ignored", "mtp")) or not gguf or not other:
                continue
            for end in ("",) if field.name in WHOLE else (".weight", ".bias"):
                self._names.setdefault(f"{gguf}{end}", f"{other}{end}")
        if family.gate_up:  # llama.cpp's converter gives the fused matrix the name of `up`
            self._names[f"{GGUF_NAMES.up}.weight"] = f"{family.gate_up}.weight"

    def names(self, gguf: str) -> tuple[str, ...]:
        """The names of the tensor's equal parts in the checkpoint: mostly one, none for a tensor that no model reads.
        An unknown tensor has the name `gguf`.

        A tensor with a matrix for each expert has names with {e} for the expert's number, and each expert's part of it
        has these parts.
        """
        if layer_part(gguf) == _GATE_AND_UP:
            each = (gguf.replace(_GATE_AND_UP, part) for part in ("ffn_gate_exps", "ffn_up_exps"))
            return tuple(name for one in each if (name := self._name(one)) is not None)
        name = self._name(gguf)
        return () if name is None else (name,)

    def _name(self, gguf: str) -> str | None:
        if gguf in IN_CONFIG or gguf.endswith(GGUF_NAMES.ignored):
            return None
        match = _IN_LAYER.fullmatch(gguf)
        if match is None:
            part, dot, end = gguf.rpartition(".")
            return self._names.get(f"{self._renamed.get(part, part)}{dot}{end}", gguf)
        if int(match[1]) in self._further:
            return self._of_further(match[2]) if int(match[1]) == self._layers else None
        name = self._in_layer(match[2])
        return gguf if name is None else name.replace("{i}", match[1])

    def _in_layer(self, rest: str) -> str | None:
        """Of what follows the layer's number: the family's name, with {i} for that number; None for unknown ones."""
        if rest == RATES:
            return self._names.get(f"blk.{{i}}.{RATES}")
        part, end = rest.rsplit(".", 1) if "." in rest else (rest, "")
        if one := _ONE_EXPERT.fullmatch(part):
            name = self._names.get(f"blk.{{i}}.{one[1]}_exps.{end}")
            return None if name is None else name.replace("{e}", one[2])
        return self._names.get(f"blk.{{i}}.{self._renamed.get(part, part)}.{end}")

    def _of_further(self, rest: str) -> str | None:
        """The same for the first layer after the model's; copies of the embedding and the head are not read."""
        if self._mtp is None:
            return None
        part, _, end = rest.rpartition(".")
        if part in _NEXT:
            name = f"{getattr(self._mtp, _NEXT[part])}.{end}"
        else:
            found = self._in_layer(rest)
            if found is None or not found.startswith(LAYER):
                return None
            name = f"{self._mtp.layer}.{found.removeprefix(LAYER)}"
        return name.replace("{n}", str(self._layers))


def layer_part(gguf: str) -> str | None:
    """What a tensor is in its layer, such as "attn_q"; None for those outside of layers."""
    match = _IN_LAYER.fullmatch(gguf)
    return None if match is None else match[2].rsplit(".", 1)[0]
