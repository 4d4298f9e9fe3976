"""vLLM on the CPU: its engine in this process, stepped by this driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request


class VllmEngine:
    """Continuous batching with vLLM's own scheduler; without a prefix cache."""

    def __init__(self, job: Job) -> None:
        llm = LLM(
            job.model,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=job.sizes.longest,
            max_num_seqs=job.max_seqs,
            disable_log_stats=True,
        )
        self.facts: dict[str, Any] = {"kv": "bfloat16"}
        self._engine: Any = llm.llm_engine
        self._served = 0

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        times: dict[str, list[float]] = {}
        for request in work:
            name = str(self._served)
            self._served += 1
            params = SamplingParams(
                temperature=0.0,
                max_tokens=request.outputs,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            times[name] = []
            self._engine.add_request(name, {"prompt_token_ids": list(request.prompt)}, params)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                times[output.request_id] += [now] * len(output.outputs[0].token_ids)
        return list(times.values())


if __name__ == "__main__":
    main(VllmEngine)
