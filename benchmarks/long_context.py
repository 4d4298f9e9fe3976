"""One sequence of 131,072 tokens through a hybrid, and one of 1,048,576 through windows with sinks, really run.

    python -m benchmarks.long_context                 both, each in a process of its own
    python -m benchmarks.long_context hybrid --tokens 16384

Prints the time, and the memory that the plan predicts beside the memory that became resident. Small shapes with random
weights: the lengths are the point. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.peers.drivers.driving import peak_rss_bytes
from headrace import LLM, SamplingParams
from headrace.core.types import NewRequest
from headrace.plan.ledger import ledger
from headrace.plan.units import MIB, format_bytes

_SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2}
_REPORTED = 16
_OUTPUTS = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A model, as fields in place of those of `shape:tiny`, and engine options."""

    title: str
    tokens: int
    fields: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "hybrid": Case(
            "hybrid: 6 layers of the gated delta rule, 2 of full attention",
            131_072,
            {
                **_SIZES,
                "architectures": ["Qwen3_5ForCausalLM"],
                "model_type": "qwen3_5_text",
                "head_dim": 64,
                "num_hidden_layers": 8,
                "full_attention_interval": 4,
                "linear_num_value_heads": 4,
                "linear_num_key_heads": 4,
                "linear_key_head_dim": 64,
                "linear_value_head_dim": 64,
            },
        ),
        "windowed": Case(
            "windowed: 8 layers that see 4 sinks and the last 4,096 tokens",
            1_048_576,
            {**_SIZES, "num_hidden_layers": 8},
            {"attention_sinks": 4, "sliding_window": 4096},
        ),
    }
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_context", description=__doc__.split("\n")[0]
    )
    parser.add_argument("case", nargs="?", choices=list(CASES))
    parser.add_argument("--tokens", type=int, help="of the sequence (default: the case's)")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(words)
    if options.case is not None:
        _run(CASES[options.case], options.tokens or CASES[options.case].tokens, options.threads)
        return 0
    more = ["--threads", str(options.threads), *(["--tokens", str(options.tokens)] if options.tokens else [])]
    commands = [[sys.executable, "-m", "benchmarks.long_context", name, *more] for name in CASES]
    return max(subprocess.run(command, check=False).returncode for command in commands)


def _run(case: Case, tokens: int, threads: int) -> None:
    prompt = tuple(random.Random(0).randbytes(tokens - _OUTPUTS))  # ids below 256
    before = _resident_bytes()
    parts = LLM(
        "shape:tiny",
        hf_overrides={**case.fields, "max_position_embeddings": tokens},
        tokenizer="tale",
        dtype="bfloat16",
        max_model_len=tokens,
        max_num_seqs=1,
        num_threads=threads,
        enable_prefix_caching=False,
        show_progress=False,
        **case.options,
    ).parts
    plan = ledger(parts.spec, parts.resolved)
    print(f"{case.title}; {tokens:,} tokens, {threads} threads")
    print(f"  planned: weights {format_bytes(plan.weight_bytes)}, KV and states {format_bytes(plan.kv_pool_bytes)}, "
          f"activations {format_bytes(plan.activation_bytes)}: {plan.total / MIB:.1f} MiB")  # fmt: skip
    loaded = _resident_bytes()
    engine, executor = parts.engine, parts.executor
    params = SamplingParams(temperature=0.0, max_tokens=_OUTPUTS, ignore_eos=True)
    begin = time.monotonic()
    engine.add(NewRequest("long", prompt, params), begin)
    times: list[float] = []
    done = 0
    while engine.has_work:
        plan_ = engine.begin(time.monotonic())
        result = executor.execute(plan_)
        for output in engine.finish(result, time.monotonic()):
            if output.error is not None:
                raise RuntimeError(output.error)
            times += [time.monotonic()] * len(output.tokens)
        before_step, done = done, done + sum(len(one.tokens) for one in plan_.slices)
        if done * _REPORTED // tokens > before_step * _REPORTED // tokens:
            print(f"  {done:,} tokens after {time.monotonic() - begin:.1f} s", flush=True)
    step = (times[-1] - times[0]) / (len(times) - 1)
    print(f"  {len(times)} tokens generated; prompt {len(prompt) / (times[0] - begin):,.0f} tokens/s, "
          f"then {step * 1e3:.2f} ms a token")  # fmt: skip
    most = peak_rss_bytes()
    print(f"  resident: {before / MIB:.1f} MiB before, {loaded / MIB:.1f} loaded, at most {most / MIB:.1f}: "
          f"{(most - before) / MIB:.1f} MiB more than before")  # fmt: skip


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096


if __name__ == "__main__":
    sys.exit(main())
