"""The signatures of the ops. `reference` specifies what each op computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the table is used in processes without torch
    import torch

Weight = Any
"""The stored form of a matrix, known only to the ops of its format. Format "dense": a tensor [O, I]."""


class Embedding(Protocol):
    def __call__(self, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


class RMSNorm(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...


class LayerNorm(Protocol):
    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor: ...


class Linear(Protocol):
    def __call__(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor: ...


class GatedLinear(Protocol):
    def __call__(
        self, x: torch.Tensor, weight: Weight, activation: str, bias: torch.Tensor | None
    ) -> torch.Tensor: ...


class Route(Protocol):
    def __call__(
        self,
        logits: torch.Tensor,
        choice_bias: torch.Tensor | None,
        expert_scale: torch.Tensor | None,
        *,
        top_k: int,
        scores: str,
        normalize: bool,
        scale: float,
        groups: int,
        top_groups: int,
        group_score: str,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class ExpertLinear(Protocol):
    def __call__(
        self,
        x: torch.Tensor,
        counts: list[int],
        weight: Weight,
        bias: torch.Tensor | None,
        activation: str | None,
    ) -> torch.Tensor: ...


class HeadsLinear(Protocol):
    def __call__(self, x: torch.Tensor, weight: Weight) -> torch.Tensor: ...


class Slots(Protocol):
    """Where a sequence's state lies: it starts from slot `source`, from zero if that is negative, and after the first
    `count` tokens of the step goes to `slot`, for each (count, slot) of `writes`."""

    @property
    def source(self) -> int: ...
    @property
    def writes(self) -> tuple[tuple[int, int], ...]: ...


class ShortConvolution(Protocol):
    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        states: torch.Tensor,
        cu_q: torch.Tensor,
        slots: Sequence[Slots],
    ) -> torch.Tensor: ...


class GatedDelta(Protocol):
    def __call__(
        self,
        qkv: torch.Tensor,
        beta: torch.Tensor,
        decay: torch.Tensor,
        rate: torch.Tensor,
        time: torch.Tensor,
        states: torch.Tensor,
        cu_q: torch.Tensor,
        slots: Sequence[Slots],
        *,
        num_key_heads: int,
        tiled: bool = False,
    ) -> torch.Tensor: ...


class RopeTables(Protocol):
    def __call__(
        self, positions: torch.Tensor, inverse_frequencies: torch.Tensor, attention_factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class ApplyRope(Protocol):
    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor: ...


class WriteKV(Protocol):
    def __call__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None: ...


class PagedAttention(Protocol):
    def __call__(
        self,
        q: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        cu_q: torch.Tensor,
        kv_lens: torch.Tensor,
        positions: torch.Tensor,
        block_tables: torch.Tensor,
        dropped: torch.Tensor,
        *,
        sink_blocks: int,
        block_size: int,
        scale: float,
        window: int | None,
        sinks: int,
        soft_cap: float | None,
        q_sink: torch.Tensor | None = None,
        learned_sinks: torch.Tensor | None = None,
        chunked: bool = False,
        slopes: torch.Tensor | None = None,
    ) -> torch.Tensor: ...
