"""OpenVINO GenAI: the continuous batching pipeline over a GGUF file, stepped by this driver."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request


class OpenvinoEngine:
    """The pipeline with its own scheduler and its own choice of compute precision; without a prefix cache."""

    def __init__(self, job: Job) -> None:
        scheduler = SchedulerConfig()
        scheduler.cache_size = job.kv_gib
        scheduler.max_num_seqs = job.max_seqs
        scheduler.max_num_batched_tokens = max(job.sizes.prefill, job.max_seqs)
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": job.threads}
        self._pipeline = ContinuousBatchingPipeline(job.model, scheduler, "CPU", properties)
        self.facts = {"kv": "the engine's choice"}
        self._served = 0

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        handles = []
        for request in work:
            config = GenerationConfig()
            config.max_new_tokens = request.outputs
            config.min_new_tokens = request.outputs
            config.ignore_eos = True
            config.do_sample = False
            ids = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._served, ids, config))
            self._served += 1
        times: list[list[float]] = [[] for _ in work]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for handle, seen in zip(handles, times, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        seen += [now] * len(output.generated_ids)
        return times


if __name__ == "__main__":
    main(OpenvinoEngine)
