"""What a GGUF file says of its model, and how an architecture is described: for `architectures`, which has them all."""

from __future__ import annotations

import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.gguf.files import GGUFModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_CHOICES, MAX_EXPERTS, MAX_INTERMEDIATE
from headrace.models.families.reading import FULL, SLIDING
from headrace.models.rope_config import MAX_POSITION

Fields = dict[str, Any]

LARGE = 1e9  # of soft caps and scales

EXPERT_KEYS = frozenset({"expert_count"})
"""Keys of files that may have experts."""


class Reader(ConfigReader):
    """Keys of one architecture. A number may be an array with one value a layer. All of them are equal, but in the
    keys `by_layer`: there the first one counts."""

    def __init__(
        self, metadata: Mapping[str, Any], architecture: str, where: str, by_layer: Collection[str] = ()
    ) -> None:
        super().__init__(metadata, where)
        self._prefix, self._by_layer = architecture, by_layer

    def has(self, name: str) -> bool:
        return super().has(self._key(name))

    def flags(self, name: str, length: int) -> list[bool] | None:
        """An array of `length` truth values, or None where it is absent."""
        if not self.has(name):
            return None
        value = super()._value(self._key(name), None)
        items = list(value) if isinstance(value, list | array.array) else []
        if len(items) != length or not all(item in (0, 1) for item in items):
            raise self._bad(name, f"a list of {length} truth values", value)
        return [bool(item) for item in items]

    def by_layer(self, name: str, length: int, low: int, high: int, default: int | None = None) -> list[int]:
        """One of these numbers for each of `length` layers; the key may hold a single one."""
        value = super()._value(self._key(name), None)
        if not isinstance(value, list | array.array):
            return [self.integer(name, low, high, default)] * length
        items = list(value)
        legal = (isinstance(x, int) and not isinstance(x, bool) and low <= x <= high for x in items)
        if len(items) != length or not all(legal):
            raise self._bad(name, f"a list of {length} whole numbers between {low} and {high}", value)
        return items

    def _key(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def _value(self, name: str, default: object) -> Any:
        value = super()._value(self._key(name), default)
        if isinstance(value, array.array) and len(value):
            if name not in self._by_layer and value.count(value[0]) != len(value):
                raise UnsupportedModel(
                    f"{self._key(name)} in {self.where} differs between layers, which is not supported"
                )
            return value[0]
        return value

    def _bad(self, name: str, expected: str, value: object) -> CheckpointError:
        return super()._bad(self._key(name), expected, value)


@dataclass(frozen=True, slots=True)
class Facts:
    """A file, and the fields of the config that every architecture has. floats: a small tensor's numbers by name."""

    model: GGUFModel
    reader: Reader
    config: Fields
    floats: Callable[[str], list[float]]

    @property
    def blocks(self) -> int:
        """Layers, those that predict further tokens included."""
        return int(self.config["num_hidden_layers"] + self.config["num_nextn_predict_layers"])

    def has_bias(self, part: str) -> bool:
        """Whether a layer's tensor of that name, such as "attn_q", has a bias: metadata does not say."""
        return self._has(f"{part}.bias")

    def has_tensor(self, part: str) -> bool:
        """Whether a layer has it."""
        return self._has(f"{part}.weight")

    def _has(self, name: str) -> bool:
        return any(f"blk.{index}.{name}" in self.model for index in range(self.config["num_hidden_layers"]))

    def layer_types(self, is_full: Callable[[int], bool]) -> list[str]:
        """From the file, or by the number of a layer."""
        count = self.config["num_hidden_layers"]
        slides = self.reader.flags("attention.sliding_window_pattern", count)
        if slides is None:
            slides = [not is_full(index) for index in range(count)]
        return [SLIDING if one else FULL for one in slides]


@dataclass(frozen=True, slots=True)
class Architecture:
    """family: the architecture that a config.json names; others: those that `fields` may give in its place. fields: of
    the config, besides those that all have.

    permuted: the rows of q and k are in the order of rope that turns neighbouring features, not features half a head
    apart. eps: the config's name of the norms' epsilon; a LayerNorm unless it begins with "rms". partial: a part of
    each head may be rotated. latent: attention is latent. hybrid: layers that do not attend may state 0 KV heads.
    reads: keys that change what a model computes and that `fields` reads; by_layer: keys whose number may differ
    between layers, which it reads too. renamed: parts by other names than those of most files.
    """

    family: str
    fields: Callable[[Facts], Fields] = lambda facts: {}
    permuted: bool = False
    eps: str = "rms_norm_eps"
    partial: bool = False
    latent: bool = False
    hybrid: bool = False
    reads: frozenset[str] = frozenset()
    by_layer: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def window_of(facts: Facts) -> int:
    """0: none, or one that reaches over the whole context."""
    window = facts.reader.integer("attention.sliding_window", 0, MAX_POSITION, 0)
    return 0 if window >= facts.config["max_position_embeddings"] else window


def no_window(facts: Facts) -> None:
    window = window_of(facts)
    if window:
        raise UnsupportedModel(
            f"{facts.model.name} has a sliding window of {window} tokens, which is not supported with "
            f"{facts.config['architectures'][0]}"
        )


def experts_of(facts: Facts, *names: str) -> Fields:
    """Their number, under these names too, and the layers without them."""
    reader, count = facts.reader, facts.config["num_hidden_layers"]
    experts = reader.integer("expert_count", 1, MAX_EXPERTS)
    dense = [index for index in range(count) if f"blk.{index}.ffn_gate_inp.weight" not in facts.model]
    return {
        **dict.fromkeys(("num_experts", *names), experts),
        "num_experts_per_tok": reader.integer("expert_used_count", 1, MAX_CHOICES),
        "mlp_only_layers": dense,
    }


def routed_experts(facts: Facts) -> Fields:
    """Of DeepSeek and of families with the same experts: the first layers have none."""
    reader, count = facts.reader, facts.config["num_hidden_layers"]
    dense = [index for index in range(count) if f"blk.{index}.ffn_gate_inp.weight" not in facts.model]
    if dense != [*range(len(dense))]:
        raise UnsupportedModel(f"{facts.model.name} has layers without experts after such with them")
    found: Fields = {"first_k_dense_replace": len(dense)}
    if len(dense) == count:
        return found
    groups = reader.integer("expert_group_count", 0, MAX_EXPERTS, 0) or 1
    return found | {
        "n_routed_experts": reader.integer("expert_count", 1, MAX_EXPERTS),
        "num_experts": reader.integer("expert_count", 1, MAX_EXPERTS),
        "num_experts_per_tok": reader.integer("expert_used_count", 1, MAX_CHOICES),
        "n_shared_experts": reader.integer("expert_shared_count", 0, MAX_EXPERTS, 0),
        "moe_intermediate_size": reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
        "routed_scaling_factor": reader.number("expert_weights_scale", 0.0, LARGE, 0.0) or 1.0,
        "norm_topk_prob": reader.flag("expert_weights_norm", False),
        "n_group": groups,
        "topk_group": reader.integer("expert_group_used_count", 0, MAX_EXPERTS, 0) or groups,
    }


def has_sigmoids(facts: Facts) -> bool:
    """Whether a router's scores are sigmoids: files that do not say so have them where the choice has a bias."""
    choice = any(
        f"blk.{index}.exp_probs_b.bias" in facts.model for index in range(facts.config["num_hidden_layers"])
    )
    return facts.reader.integer("expert_gating_func", 1, 2, 2 if choice else 1) == 2
