"""An EAGLE layer as a spec, for the plan and the runner. No torch here."""

from __future__ import annotations

from pathlib import Path

from headrace.models.draft_layers import DraftLayers
from headrace.models.names import HF_NAMES
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.spec import AttentionSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, RopeSpec
from headrace.speculative.heads import eagle_layer


def eagle_layers(folder: Path, base: ModelSpec) -> DraftLayers | None:
    """The layer in a folder of heads for a model; None where it holds other heads. Raises CheckpointError."""
    layer = eagle_layer(folder, base.hidden_size)
    if layer is None:
        return None
    attention = AttentionSpec(
        layer.num_attention_heads,
        layer.num_key_value_heads,
        layer.head_dim,
        layer.head_dim**-0.5,
        RopeSpec(layer.rope_theta, layer.head_dim),
    )
    stored = Checkpoint(folder).matrix_dtype()
    spec = ModelSpec(
        family="llama",
        hidden_size=layer.hidden_size,
        vocab_size=base.vocab_size,
        max_position=base.max_position,
        layers=(LayerSpec(attention, MLPSpec(layer.intermediate_size)),),
        norm=NormSpec(layer.rms_norm_eps),
        tie_embeddings=True,
        checkpoint_dtype=stored,
        matrix_dtype=stored,
    )
    return DraftLayers(spec, HF_NAMES, "model.fc")
