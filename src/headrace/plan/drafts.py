"""What a model that drafts for another adds to a plan."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.spec import ModelSpec
from headrace.plan.activations import activation_bytes
from headrace.plan.formats import MemoryFormat
from headrace.plan.kv import KVDemand
from headrace.plan.weights import held_bytes
from headrace.program.lower import lower
from headrace.program.lower_layers import lower_layers
from headrace.program.recent import with_recent
from headrace.program.records import Program
from headrace.quant.format import WeightFormats

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model, or layers, that drafts for another: how it is stored, beside what the two share (KV type, kernels,
    threads). `layers` None: a whole model."""

    name: str
    spec: ModelSpec  # with streaming options put in
    program: Program
    memory: MemoryFormat
    quantization: str | None
    weights_dtype: str
    weight_formats: WeightFormats | None
    layers: DraftLayers | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def weight_bytes(self) -> int:
        return sum(sum(held_bytes(one, self.memory).values()) for one in self.program.weights)

    def activation_bytes(self, tokens: int, seqs: int, demands: tuple[KVDemand, ...]) -> int:
        """Of its largest step. `demands` are those of its own KV groups."""
        own = activation_bytes(self.program, tokens, seqs, self.memory, demands)
        if self.layers is None:
            return own
        # What they read, as it is put together, held and computed with, and a state of each token of the model's step.
        return own + tokens * 7 * self.spec.hidden_size * _FLOAT_BYTES


def draft_program(spec: ModelSpec, layers: DraftLayers | None, kv_dtype: str) -> Program:
    """The program of a model that drafts, or of layers of this spec; the table of what layers read has one row here."""
    program = lower(spec, weight_names(spec)) if layers is None else lower_layers(layers, 1)
    return with_recent(program, kv_dtype)


@dataclass(frozen=True, slots=True)
class DraftHeads:
    """Heads on the model's hidden states that draft for it, what they take in memory, and the nodes of their tree.

    count: heads, each of which drafts one of the tokens to come; shared: those of them that end in the model's head,
    and have no matrix for it of their own.
    """

    name: str
    bytes: int
    nodes: int = 0
    count: int = 0
    shared: int = 0


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
