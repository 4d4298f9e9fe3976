"""Runs requests while draft layers are watched: what they read, and what is proposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.types import BlockCopy, NewRequest
from headrace.runner.drafting import Drafted
from headrace.runner.executor import ModelExecutor
from headrace.runner.step import Step
from headrace.speculative.control import Speculation
from headrace.speculative.eagle import EagleMethod
from headrace.speculative.method import Proposal


class Watched:
    """Passes on what an EAGLE method and its layers do, and keeps it."""

    def __init__(self, method: EagleMethod) -> None:
        self._layers = method.layers
        self.read: list[int] = []  # positions, in order
        self.steps: list[int] = []  # tokens of each step
        self.proposed: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # tokens, and the draft after them
        self.trees: list[
            tuple[tuple[int, ...], Proposal, int, int]
        ] = []  # the same, its seed and output length
        self.copied = 0  # blocks
        method.layers = self
        self._propose = method.propose
        method.propose = self.propose  # type: ignore[method-assign]

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        found = self._propose(sequences)
        pairs = zip(sequences, found, strict=True)
        for one, proposal in pairs:
            if one.room:
                self.proposed.append((tuple(one.tokens), proposal.tokens))
                self.trees.append((tuple(one.tokens), proposal, one.state.seed, one.state.num_output))
        return found

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self.copied += len(copies)
        self._layers.copy_blocks(copies)

    def forward(self, step: Step, *inputs: Any) -> Any:
        self.read += step.positions.tolist()
        self.steps.append(len(step.ids))
        return self._layers.forward(step, *inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers, name)


def drive(requests: list[NewRequest], **options: object) -> tuple[Any, Watched]:
    """The outputs of requests under these options, in float32 and always drafting, by default chains."""
    config: dict[str, object] = {
        "num_threads": 1, "dtype": "float32", "adaptive_speculation": False, "kv_cache_memory": "16MiB",
        "speculative_tree_nodes": 0,
    }  # fmt: skip
    parts = assemble(EngineConfig.from_kwargs(**config | options))
    assert isinstance(parts.executor, ModelExecutor) and isinstance(parts.executor.drafter, Speculation)
    (method,) = parts.executor.drafter.methods
    assert isinstance(method, EagleMethod)
    watched = Watched(method)
    for request in requests:
        parts.engine.add(request, 0.0)
    outputs = []
    while parts.engine.has_work:
        outputs += parts.engine.finish(parts.executor.execute(parts.engine.begin(0.0)), 0.0)
    assert not method._progress  # of sequences that have ended nothing is kept
    return outputs, watched
