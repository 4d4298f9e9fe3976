"""ONNX Runtime GenAI: its generator over static batches of token ids."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request

BATCH = 32
"""Sequences of one generator; a static batch has no room for more."""


class OnnxRuntimeEngine:
    """Left-padded batches of at most BATCH requests; each runs until its longest member has all its tokens."""

    def __init__(self, job: Job) -> None:
        threads = {"intra_op_num_threads": job.threads}
        config = og.Config(job.model)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        stored = json.loads((Path(job.model) / "genai_config.json").read_text(encoding="utf-8"))
        self._pad: int = stored["model"]["pad_token_id"]
        self._model = og.Model(config)
        self.facts = {"kv": "float32"}

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        times: list[list[float]] = []
        for batch in _batches(work, BATCH):
            steps = self._generate(batch)
            times += [steps[: request.outputs] for request in batch]
        return times

    def _generate(self, batch: Sequence[Request]) -> list[float]:
        """The time of every step."""
        longest = max(len(request.prompt) for request in batch)
        outputs = max(request.outputs for request in batch)
        ids = np.full((len(batch), longest), self._pad, dtype=np.int32)  # [B, longest]
        for row, request in zip(ids, batch, strict=True):
            row[longest - len(request.prompt) :] = request.prompt
        params = og.GeneratorParams(self._model)
        length = longest + outputs
        # min_length keeps the end of sequence from being chosen.
        params.set_search_options(
            do_sample=False, batch_size=len(batch), min_length=length, max_length=length
        )
        generator = og.Generator(self._model, params)
        generator.append_tokens(ids)
        times = []
        for _ in range(outputs):
            generator.generate_next_token()
            times.append(time.perf_counter())
        return times


def _batches(work: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(work), size):
        yield work[start : start + size]


if __name__ == "__main__":
    main(OnnxRuntimeEngine)
