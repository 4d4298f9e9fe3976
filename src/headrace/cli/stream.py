"""Prints completions as they grow."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.llm import RequestOutput
from headrace.plan.units import milliseconds


def print_stream(outputs: Iterator[RequestOutput]) -> RequestOutput:
    """Print the text of the first completion as it comes, then a line of numbers; returns the final result."""
    shown = 0
    last: RequestOutput | None = None
    for last in outputs:
        text = last.outputs[0].text
        print(text[shown:], end="", flush=True)
        shown = len(text)
    print()
    if last is None:
        raise RuntimeError("the engine ended a request without a result")
    print(numbers_line(last), file=sys.stderr)
    return last


def numbers_line(output: RequestOutput) -> str:
    """Tokens, speed and times of one finished request, in one line."""
    metrics = output.metrics
    parts = [f"{metrics.num_output_tokens} tokens"]
    if metrics.tpot_s:
        parts.append(f"{1 / metrics.tpot_s:.0f} tok/s")
    if metrics.ttft_s is not None:
        parts.append(f"first after {milliseconds(metrics.ttft_s)}")
    if metrics.num_cached_tokens:
        parts.append(f"{metrics.num_cached_tokens} of {metrics.num_prompt_tokens} prompt tokens cached")
    reason = output.outputs[0].finish_reason
    if reason:
        parts.append(f"ended by {reason}")
    return f"[{', '.join(parts)}]"
