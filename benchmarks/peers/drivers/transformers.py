"""transformers' generate: static batches, the simplest option for a user."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request

PAD = 0
BATCH = 32
"""Sequences of one generate call; more wait, as a static batch has no room for them."""


class TransformersEngine:
    """Left-padded batches of at most BATCH requests; each runs until its longest member has all its tokens."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self.facts = {"kv": "bfloat16"}
        models: Any = AutoModelForCausalLM
        self._model: Any = models.from_pretrained(job.model, dtype=torch.bfloat16).eval()

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        times: list[list[float]] = []
        for batch in _batches(work, BATCH):
            steps = self._generate(batch)
            times += [steps[: request.outputs] for request in batch]
        return times

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Request]) -> list[float]:
        """The time of every step."""
        longest = max(len(request.prompt) for request in batch)
        ids = torch.full((len(batch), longest), PAD)  # [B, longest]
        for row, request in zip(ids, batch, strict=True):
            row[longest - len(request.prompt) :] = torch.tensor(request.prompt)
        mask = torch.zeros_like(ids)
        for row, request in zip(mask, batch, strict=True):
            row[longest - len(request.prompt) :] = 1
        outputs = max(request.outputs for request in batch)
        clock = _Clock()
        make_config: Any = GenerationConfig
        config = make_config(
            do_sample=False,
            max_new_tokens=outputs,
            min_new_tokens=outputs,
            pad_token_id=PAD,
            eos_token_id=None,
        )
        self._model.generate(
            ids,
            attention_mask=mask,
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        return clock.times


class _Clock(StoppingCriteria):  # type: ignore[misc]  # transformers counts as untyped
    """Stops nothing; it is called after every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def _batches(work: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(work), size):
        yield work[start : start + size]


if __name__ == "__main__":
    main(TransformersEngine)
