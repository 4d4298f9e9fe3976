"""Headrace: the offline API's engine, stepped by this driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request
from headrace import LLM, SamplingParams
from headrace.build import EngineParts
from headrace.core.types import NewRequest
from headrace.plan.ledger import ledger
from headrace.sim.work import model_work

OPTIONS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "q8_0": {"dtype": "bfloat16"},
    "q4_k_m": {"dtype": "bfloat16"},
    "gguf": {"dtype": "bfloat16", "tokenizer": "tale"},  # files without a vocabulary
}


class HeadraceEngine:
    """Continuous batching with the engine's own scheduler; without a prefix cache."""

    def __init__(self, job: Job) -> None:
        self._parts = LLM(
            job.model,
            **OPTIONS[job.format],
            num_threads=job.threads,
            kv_cache_memory=job.kv_gib << 30,
            max_model_len=job.sizes.longest,
            max_num_seqs=job.max_seqs,
            enable_prefix_caching=False,
            show_progress=False,
        ).parts
        self.work = model_work(self._parts.spec, self._parts.resolved)
        self.facts = _facts(self._parts)
        self._served = 0

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        engine, executor = self._parts.engine, self._parts.executor
        times: dict[str, list[float]] = {}
        for request in work:
            name = f"bench-{self._served}"
            self._served += 1
            params = SamplingParams(temperature=0.0, max_tokens=request.outputs, ignore_eos=True)
            times[name] = []
            engine.add(NewRequest(name, request.prompt, params), time.monotonic())
        while engine.has_work:
            outputs = engine.finish(executor.execute(engine.begin(time.monotonic())), time.monotonic())
            now = time.perf_counter()
            for output in outputs:
                if output.error is not None:
                    raise RuntimeError(output.error)
                times[output.request_id] += [now] * len(output.tokens)
        return list(times.values())


def _facts(parts: EngineParts) -> dict[str, Any]:
    """What the machine's limit depends on: bytes of packed weights with scales, of a token's KV, types of products."""
    work, memory = model_work(parts.spec, parts.resolved), ledger(parts.spec, parts.resolved)
    weights = parts.resolved.weight_format
    return {
        "weights": parts.resolved.dtype if weights is None else weights.name,
        "weight_bits": 16.0 if weights is None else weights.bits_per_weight,
        "kv": parts.resolved.kv_cache_dtype,
        "weight_bytes": memory.weight_bytes,
        "layer_bytes": work.layer_bytes,
        "head_bytes": work.head_bytes,
        "token_bytes": [token_bytes for _, token_bytes in work.groups],
        "weight_product": work.weight_product,
        "attention_product": work.attention_product,
    }


if __name__ == "__main__":
    main(HeadraceEngine)
