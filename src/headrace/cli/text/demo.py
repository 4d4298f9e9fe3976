"""`headrace demo`: one story, the same one drafted, then one workload served in several ways."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import DEFAULT_MODEL
from headrace.cli.parser import add_command, typed
from headrace.cli.text.completions import print_stream
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.llm import LLM
    from headrace.serving.requests.inputs import Message
    from headrace.serving.requests.outputs import RequestOutput

EXAMPLES = """\
examples:
  headrace demo
  headrace demo --requests 96 --rate 100
"""
MAX_RATE = 1e6
NATIVE, TORCH = (192, 1000.0), (48, 60.0)
"""Requests and arrivals a second that keep two cores busy, on the native kernels and on torch."""
DRAFTER = "tale-draft"
STORIES = 5
"""How often the story is told with and without drafts, by turns, after once that warms up."""
STORY = "Tell me a story about a fox who wants a boat."


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "demo", "[options]", summary="a story, then one workload served in several ways", examples=EXAMPLES,
        description="Stream one story from the bundled model, tell it again with a small model that drafts, then "
        "serve one workload in several ways, each with one technique more than the one before, and compare them.",
    )  # fmt: skip
    parser.add_argument(
        "--requests", type=int, default=None,
        help=f"requests in the workload (default: {NATIVE[0]}, or {TORCH[0]} without native kernels)",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=float, default=None,
        help=f"arrivals a second on average (default: {NATIVE[1]:g}, or {TORCH[1]:g} without native kernels)",
    )  # fmt: skip
    parser.add_argument("--num-threads", type=int, default=None, help="CPU threads")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from headrace.bench.baselines import (
        BASELINES,
        BATCH,
        MAX_MODEL_LEN,
        compare,
        kv_token_bytes,
        render,
        served,
    )
    from headrace.bench.workload import shared_prompt_chats, total_tokens
    from headrace.core.params import SamplingParams
    from headrace.llm import LLM
    from headrace.ops.cpu_features import detect
    from headrace.plan.units import format_bytes

    if args.requests is not None and args.requests < 1:
        raise ConfigError(f"--requests must be at least 1, got {args.requests}")
    if args.rate is not None and not 0 < args.rate <= MAX_RATE:
        raise ConfigError(f"--rate must be above 0 and at most {MAX_RATE:g} a second, got {args.rate:g}")
    options = {} if args.num_threads is None else {"num_threads": args.num_threads}
    llm = LLM(DEFAULT_MODEL, show_progress=False, **options)
    print(f"> {STORY}\n")
    messages = [{"role": "user", "content": STORY}]
    print_stream(llm.stream_chat(messages, SamplingParams(temperature=0.0, max_tokens=300)))

    print(_drafted(llm, messages, options))
    resolved = llm.parts.resolved
    usual = TORCH if resolved.kernels is None else NATIVE
    count, rate = args.requests or usual[0], args.rate or usual[1]
    arrivals = shared_prompt_chats(count, llm.tokenizer.encode_chat, rate_per_s=rate)
    memory = BATCH * MAX_MODEL_LEN * kv_token_bytes(resolved)
    prompt, output = total_tokens(arrivals)
    print(
        f"\nOne workload in {len(BASELINES)} ways: {len(arrivals)} chats after one system prompt, {prompt} prompt and "
        f"{output} output tokens,\nof long-tailed lengths, arriving at {rate:g} a second, each way with "
        f"{format_bytes(memory)} of KV memory.\n"
        f"{detect().brand or 'unknown CPU'}, {resolved.num_threads} threads, {resolved.dtype}.\n"
    )
    tokens = sum(total_tokens(served(baseline, arrivals))[1] for baseline in BASELINES)
    with tqdm(total=tokens, unit="tok", file=sys.stderr, leave=False, disable=None) as bar:

        def advance(tokens: int) -> None:
            bar.update(tokens)

        def on_start(name: str) -> Callable[[int], None]:
            bar.set_description(name)
            return advance

        rows = compare(DEFAULT_MODEL, arrivals, memory, on_start, **options)
    print(render(rows))
    print(
        typed(
            "\nNext:\n"
            "  headrace chat          talk to it\n"
            "  headrace serve tale    an OpenAI-compatible server\n"
            "  headrace inspect       where the memory goes, and why each setting is what it is"
        )
    )
    return 0


def _drafted(llm: LLM, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """What drafts change for one story, and what they do not."""
    from headrace.core.params import SamplingParams
    from headrace.llm import LLM

    params = SamplingParams(temperature=0.0, max_tokens=300)
    drafting = LLM(
        DEFAULT_MODEL, show_progress=False, speculative=DRAFTER, adaptive_speculation=False, **options
    )
    engines = [llm, drafting]
    rates: list[list[float]] = [[], []]
    outputs: list[RequestOutput] = []
    right = every = 0
    for _ in range(STORIES + 1):
        outputs = [engine.chat(messages, params)[0] for engine in engines]
        for rate, output in zip(rates, outputs, strict=True):
            right, every = (
                right + output.metrics.num_accepted_tokens,
                every + output.metrics.num_drafted_tokens,
            )
            rate.append((output.metrics.num_output_tokens - 1) / (output.metrics.decode_s or math.inf))
    plain, drafted = (statistics.median(each[1:]) for each in rates)
    before, after = outputs
    same = "the same" if after.outputs[0].token_ids == before.outputs[0].token_ids else "ANOTHER"
    short = (
        f" Steps of {DEFAULT_MODEL} are so short\nthat drafting costs more than it gains: unless asked to draft"
        " always, Headrace lets\nsuch a drafter rest."
    )
    return (
        f"\nOne story alone, drafted by the smaller {DRAFTER}: {drafted:.0f} tok/s instead of {plain:.0f}, "
        f"{drafted / plain:.2f} x, {same} story.\n{right / max(1, every):.0%} of the drafted tokens were "
        f"right. (--speculative {DRAFTER}){'' if drafted > plain else short}"
    )
