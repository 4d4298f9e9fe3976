"""What the server process must know of the model that the engine process has loaded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`max_model_len` counts prompt and output tokens; None for streams whose every layer is bounded by a window.
    `tokenizer_folder` is None for models without a tokenizer. `sampling_defaults`: fields of SamplingParams where a
    request gives none."""

    model: str
    vocab_size: int
    max_model_len: int | None
    tokenizer_folder: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    max_num_seqs: int = 1
    block_size: int = 1
    num_kv_blocks: int = 1
    hidden_size: int = 1
    sampling_defaults: dict[str, float | int] = field(default_factory=dict)
