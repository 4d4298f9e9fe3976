"""What a generation gives, read to its end and put together."""

from __future__ import annotations

from headrace.serving.client.source import arrivals
from headrace.serving.requests.generation import Generation
from headrace.serving.requests.output_processor import GrowingResult
from headrace.serving.requests.outputs import RequestOutput
from headrace.text.tokenizer import Tokenizer


async def read(generation: Generation, tokenizer: Tokenizer) -> RequestOutput:
    growing = GrowingResult(generation.pending, None, tokenizer)
    async for deltas in arrivals(generation):
        for delta in deltas:
            growing.add(delta)
    assert generation.metrics is not None
    return growing.final()
