"""What a model that drafts for another adds to a plan."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.models.families import weight_names
from headrace.models.spec import ModelSpec
from headrace.plan.activations import activation_bytes
from headrace.plan.formats import MemoryFormat
from headrace.plan.kv import KVDemand
from headrace.plan.weights import total_weight_bytes
from headrace.program.lower import lower
from headrace.program.records import Program
from headrace.quant.format import WeightFormats


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model that drafts for another: how it is stored, beside what the two share (KV type, kernels, threads)."""

    name: str
    spec: ModelSpec  # with streaming options put in
    memory: MemoryFormat
    quantization: str | None
    weights_dtype: str
    weight_formats: WeightFormats | None

    def __str__(self) -> str:
        return self.name

    @property
    def program(self) -> Program:
        return lower(self.spec, weight_names(self.spec))

    @property
    def weight_bytes(self) -> int:
        return total_weight_bytes(self.program, self.memory)

    def activation_bytes(self, tokens: int, seqs: int, demands: tuple[KVDemand, ...]) -> int:
        """Of its largest step. `demands` are those of its own KV groups."""
        return activation_bytes(self.program, tokens, seqs, self.memory, demands)


@dataclass(frozen=True, slots=True)
class DraftHeads:
    """Heads on the model's hidden states that draft for it, and what they take in memory."""

    name: str
    bytes: int


def check_draft(draft: ModelSpec, target: ModelSpec, name: str) -> None:
    """Raise ConfigError where a model cannot draft for another, whatever its weights are."""
    if any(layout.state is not None for layout in draft.kv_shapes):
        raise ConfigError(
            f"{name} has recurrent layers, whose states cannot take back a rejected draft: draft with another model"
        )
    if not _similar(draft.vocab_size, target.vocab_size):
        raise ConfigError(
            f"{name} has {draft.vocab_size} tokens, and the model it is to draft for {target.vocab_size}: both need "
            "the same vocabulary"
        )


def _similar(one: int, other: int) -> bool:
    """Models of one tokenizer differ in their padding."""
    return abs(one - other) <= max(one, other) // 64 + 256
