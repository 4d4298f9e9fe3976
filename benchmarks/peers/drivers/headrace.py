"""Headrace: the offline API's engine, stepped by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request
from headrace import LLM, SamplingParams
from headrace.core.types import NewRequest

OPTIONS: dict[str, dict[str, object]] = {
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}


class HeadraceEngine:
    """Continuous batching with the engine's own scheduler; no prefix cache, for no prompt is to be free."""

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


if __name__ == "__main__":
    main(HeadraceEngine)
