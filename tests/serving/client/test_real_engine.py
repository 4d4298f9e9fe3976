"""The bundled model in an engine process gives the same results as in this process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headrace import LLM, EngineDead, PromptTooLong, SamplingParams
from headrace.core.types import NewRequest
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.requests.generation import Generation
from headrace.serving.requests.outputs import CompletionOutput, RequestOutput
from headrace.text.tokenizer import Tokenizer
from tests.serving.conftest import TALE
from tests.serving.read import read

OPTIONS: dict[str, object] = {"model": "tale", "num_threads": 1, "num_kv_blocks": 40, "max_model_len": 512}
PROMPTS = ["Once upon a time there was a fox", "Once upon a time there was a cat", "The forest"]
PARAMS = [
    SamplingParams(max_tokens=30, temperature=0.0, logprobs=1),
    SamplingParams(max_tokens=60, temperature=0.8, seed=5, n=2, stop=(" the", ".")),
    SamplingParams(max_tokens=20, top_k=20, top_p=0.9, seed=6, repetition_penalty=1.2, prompt_logprobs=1),
]


async def in_another_process(tokenizer: Tokenizer) -> list[RequestOutput]:
    client = await ProcessClient.start(OPTIONS)
    try:
        assert client.facts.tokenizer_folder == str(TALE)
        assert (client.facts.max_model_len, client.facts.vocab_size) == (512, 2048)
        with pytest.raises(PromptTooLong):
            await client.submit(NewRequest("long", (5,) * 600))
        new_requests = [
            NewRequest(f"r{i}", tuple(tokenizer.encode(prompt)), params)
            for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
        ]

        async def run(new: NewRequest) -> RequestOutput:
            generation = await Generation.start(client, tokenizer, new)
            return await read(generation, tokenizer)

        results = await asyncio.gather(*map(run, new_requests))
        stats = await client.stats()
        assert stats.free_blocks == stats.total_blocks
        stream = await client.submit(
            NewRequest("last", (5,), SamplingParams(max_tokens=500, ignore_eos=True))
        )
        await anext(arrivals(stream))
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="SIGKILL"):
            async for _ in arrivals(stream):
                pass
        return results
    finally:
        await client.aclose()


def exact(output: CompletionOutput) -> tuple[object, ...]:
    return output.index, output.text, output.token_ids, output.finish_reason, output.stop_reason


def all_logprobs(results: list[RequestOutput]) -> list[float]:
    """The chosen tokens' log-probabilities: of the first answer, then of the last prompt."""
    first, last = results[0].outputs[0], results[-1]
    assert first.logprobs is not None and last.prompt_logprobs is not None
    prompt = zip(last.prompt_token_ids[1:], last.prompt_logprobs[1:], strict=True)
    return [at[token].logprob for token, at in zip(first.token_ids, first.logprobs, strict=True)] + [
        (at or {})[token].logprob for token, at in prompt
    ]


def test_with_and_without_a_process_the_result_is_the_same(tokenizer: Tokenizer) -> None:
    there = asyncio.run(asyncio.wait_for(in_another_process(tokenizer), 120))
    here = LLM(**OPTIONS, show_progress=False).generate(PROMPTS, PARAMS, use_tqdm=False)  # type: ignore[arg-type]
    for one, other in zip(there, here, strict=True):
        assert [exact(output) for output in one.outputs] == [exact(output) for output in other.outputs]
    # The batches differed, and so may the last bits of logits.
    assert all_logprobs(there) == pytest.approx(all_logprobs(here), abs=1e-4)
    assert any(one.finish_reason == "stop" and one.stop_reason in (" the", ".") for one in there[1].outputs)
    for output in there:
        assert output.metrics.ttft_s is not None and output.metrics.e2e_s is not None
        assert 0 < output.metrics.ttft_s <= output.metrics.e2e_s
