"""What an engine reports: its state, its model, and which completions have ended."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core.snapshot import Snapshot
from headrace.core.types import Output


class EngineState(enum.Enum):
    """READY and DRAINING engines run requests; only a READY one takes new ones."""

    STARTING = "starting"  # its model is being loaded for the first time
    READY = "ready"
    RESTARTING = "restarting"  # it ended by itself, and another one is being started
    DRAINING = "draining"  # the server ends: running requests may finish
    DEAD = "dead"  # it ended, and is not restarted

    @property
    def alive(self) -> bool:
        """There is an engine that runs requests."""
        return self in (EngineState.READY, EngineState.DRAINING)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`max_model_len` counts prompt and output tokens; None for streams whose every layer is bounded by a window.
    `tokenizer_folder` is None for models without a tokenizer. `sampling_defaults`: fields of SamplingParams where a
    request gives none. `family` is the model's architecture; `weight_format` how most weights are stored in memory,
    `weight_bytes` what they take there; `weights_id` identifies their content, as hexadecimal digits. `container` is
    the kind of file that they were read from."""

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
    family: str = ""
    num_parameters: int = 0
    weight_format: str = "float32"
    weight_bytes: int = 0
    weights_id: str = ""
    container: str = "safetensors"


MAX_ENDED = 512
"""Most endings that are kept between two views; the oldest are dropped."""

WATCHED_S = 5.0
"""Seconds after a view during which endings are recorded."""


@dataclass(frozen=True, slots=True)
class View:
    """The engine now, and the endings since the last view: who, why, and the statistics; no tokens."""

    snapshot: Snapshot
    ended: tuple[Output, ...] = ()


class Journal:
    """Records endings while views are taken. Times in seconds on the engine's clock."""

    def __init__(self) -> None:
        self._ended: deque[Output] = deque(maxlen=MAX_ENDED)
        self._until = float("-inf")

    def note(self, outputs: Iterable[Output], now: float) -> None:
        """Record the endings among a step's outputs."""
        if now > self._until:
            self._ended.clear()
            return
        for output in outputs:
            if output.finish_reason is not None:
                self._ended.append(
                    Output(
                        output.request_id.rpartition("@")[0] or output.request_id,  # without the submission
                        output.index,
                        finish_reason=output.finish_reason,
                        stats=output.stats,
                    )
                )

    def take(self, now: float) -> tuple[Output, ...]:
        """The endings recorded since the last call; starts recording."""
        self._until = now + WATCHED_S
        ended = tuple(self._ended)
        self._ended.clear()
        return ended
