"""The one decoder: runs every ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from headrace.models.attention import Attention, RotationKey, Rotations, Tables
from headrace.models.batch import Batch, GroupBatch, LayerKV
from headrace.models.spec import LayerSpec, MLPSpec, ModelSpec
from headrace.models.weights import DecoderWeights, LayerWeights, MLPWeights
from headrace.ops.table import Ops


class GatedMLP:
    """The gated feed-forward of one layer."""

    def __init__(self, spec: MLPSpec, weights: MLPWeights, ops: Ops) -> None:
        self._activation = spec.activation
        self._weights = weights
        self._op = ops.gated_mlp[weights.gate_up.format]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] normalised hidden states; gives [T, H]."""
        gate_up, down = self._weights.gate_up, self._weights.down
        return self._op(x, gate_up.weight, down.weight, self._activation, gate_up.bias, down.bias)


class Layer:
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(self, spec: LayerSpec, weights: LayerWeights, ops: Ops, norm_eps: float) -> None:
        self._weights = weights
        self._ops = ops
        self._norm_eps = norm_eps
        self._attention = Attention(spec.mixer, weights.attention, ops, norm_eps)
        self._mlp = GatedMLP(spec.feed_forward, weights.mlp, ops)

    def __call__(
        self,
        x: torch.Tensor,
        batch: Batch,
        group: GroupBatch,
        kv: LayerKV,
        rotations: Mapping[RotationKey, Tables],
    ) -> torch.Tensor:
        """x [T, H] residual stream; gives [T, H]."""
        normed = self._ops.rms_norm(x, self._weights.input_norm, self._norm_eps)
        x = x + self._attention(normed, batch, group, kv, rotations)
        return x + self._mlp(self._ops.rms_norm(x, self._weights.post_norm, self._norm_eps))


class Decoder:
    """A decoder-only transformer over a paged KV cache. It keeps no state between steps; the KV is stored outside.

    Runs under torch.inference_mode or torch.no_grad; weights need no gradient.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        ops: Ops,
        device: torch.device | str,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.ops = ops
        self._head = ops.linear[weights.head.format]
        self._rotations = Rotations.of(spec, ops, torch.device(device))
        self._layers = [
            Layer(layer, part, ops, spec.norm_eps)
            for layer, part in zip(spec.layers, weights.layers, strict=True)
        ]
        group_of = {index: group for group, layout in enumerate(spec.kv_shapes) for index in layout.layers}
        self._group_of = [group_of[index] for index in range(len(spec.layers))]

    def forward(self, batch: Batch, kv: Sequence[LayerKV]) -> torch.Tensor:
        """Run one step: write the KV of its tokens and give logits [R, V] float32 of batch.logits_rows.

        `kv` is indexed by layer.
        """
        return self.logits(self.hidden(batch, kv)[batch.logits_rows])

    def hidden(self, batch: Batch, kv: Sequence[LayerKV]) -> torch.Tensor:
        """Write the KV of a step's tokens and give the residual stream after the last layer, [T, H]."""
        rotations = self._rotations.at(batch.positions)
        x = self.ops.embedding(batch.tokens, self.weights.embed)  # [T, H]
        for layer, group, layer_kv in zip(self._layers, self._group_of, kv, strict=True):
            x = layer(x, batch, batch.groups[group], layer_kv, rotations)
        return x

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm of rows [R, H]; what HF calls last_hidden_state."""
        return self.ops.rms_norm(hidden, self.weights.final_norm, self.spec.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and language-model head of rows [R, H]: logits [R, V] float32."""
        head = self.weights.head
        logits = self._head(self.normed(hidden), head.weight, head.bias).float()  # [R, V]
        cap = self.spec.final_soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)
