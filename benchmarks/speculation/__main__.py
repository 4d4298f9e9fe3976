"""The command: `python -m benchmarks.speculation`; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import GGUF_WRITER, LLAMACPP
from benchmarks.peers.workplace import DEFAULT, ROOT, Workplace
from headrace.bench.model.speculative import Case, requests
from headrace.bench.report import machine_facts
from headrace.core.params import SamplingParams
from headrace.llm import LLM
from headrace.models.source import BUNDLED_FOLDER
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_source import open_tokenizer

MODEL, DRAFT = "tale", "tale-draft"
METHODS = {"none": None, "look-up": "ngram", "draft model": DRAFT}
"""What llama.cpp calls it, and what it is here."""

_EXAMPLES = """examples:
  python -m benchmarks.peers setup --only llamacpp    installs llama.cpp and gguf
  python -m benchmarks.speculation
  python -m benchmarks.speculation --workloads stories --rounds 7"""

Found = dict[str, list[dict[str, Any]]]
"""By method, for each prompt: tokens, seconds, drafted, accepted, steps."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    workplace = Workplace(options.work.resolve())
    files = {name: _written(name, workplace) for name in (MODEL, DRAFT)}
    tokenizer = open_tokenizer(BUNDLED_FOLDER / MODEL)
    engines = {
        method: LLM(
            str(files[MODEL]), num_threads=options.threads, show_progress=False, max_num_seqs=1,
            speculative=str(files[DRAFT]) if name == DRAFT else name,
        )
        for method, name in METHODS.items()
    }  # fmt: skip
    machine = machine_facts()
    print(
        f"{machine.cpu}, {options.threads} threads, {time.strftime('%Y-%m-%d')}. {MODEL} and {DRAFT} in GGUF BF16, "
        f"greedy, batch 1, {options.prompts} prompts of {options.outputs} tokens each, {options.rounds} rounds."
        "\n"
    )
    print(
        "| workload | drafts | Headrace tok/s | speed-up | accepted | tokens a step | llama.cpp tok/s | speed-up | "
        "accepted | tokens a step |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for workload in options.workloads:
        prompts = _prompts(workload, tokenizer, options)
        job = {
            "model": str(files[MODEL]), "draft": str(files[DRAFT]), "threads": options.threads,
            "outputs": options.outputs, "prompts": prompts,
        }  # fmt: skip
        rounds: list[tuple[Found, Found]] = []
        for _ in range(options.rounds):
            ours = _ours(engines, prompts, options.outputs)
            rounds.append((ours, _theirs(job, workplace)))
        _same_answers(workload, [ours for ours, _ in rounds])
        for method in METHODS:
            cells = [_cells([one[side] for one in rounds], method) for side in range(2)]
            print(f"| {workload} | {method} | {cells[0]} | {cells[1]} |", flush=True)
    return 0


def _written(name: str, workplace: Workplace) -> Path:
    """The model as a GGUF file, which both engines read."""
    file = workplace.folder / "models" / f"{name}-bf16.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.part")
        python = str(workplace.python(GGUF_WRITER.name))
        command = [
            python,
            "-m",
            "benchmarks.peers.gguf_writer",
            str(BUNDLED_FOLDER / name),
            str(part),
            "BF16",
        ]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        part.rename(file)
    return file


def _prompts(workload: str, tokenizer: Tokenizer, options: argparse.Namespace) -> list[list[int]]:
    case = Case(workload, 0.0, options.prompts, options.outputs)
    return [list(one.request.prompt) for one in requests(case, tokenizer, 0, seed=0)]


def _ours(engines: Mapping[str, LLM], prompts: Sequence[list[int]], outputs: int) -> Found:
    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True)
    found: Found = {}
    for method, engine in engines.items():
        found[method] = []
        for prompt in prompts:
            before = engine.stats().scheduler.steps
            (output,) = engine.generate(prompt, params, use_tqdm=False)
            metrics = output.metrics
            found[method].append(
                {
                    "tokens": list(output.outputs[0].token_ids),
                    "seconds": metrics.decode_s,
                    "drafted": metrics.num_drafted_tokens,
                    "accepted": metrics.num_accepted_tokens,
                    "steps": engine.stats().scheduler.steps - before - 1,  # but for that of the prompt
                }
            )
    return found


def _theirs(job: Mapping[str, Any], workplace: Workplace) -> Found:
    file = workplace.folder / "speculation-job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    command = [
        str(workplace.python(LLAMACPP.name)),
        "-m",
        "benchmarks.speculation.llamacpp_driver",
        str(file),
    ]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: Found = json.loads(done.stdout)
    return found


def _same_answers(workload: str, rounds: Sequence[Found]) -> None:
    """Drafts must change no token. AssertionError where they do."""
    for found in rounds:
        expected = [one["tokens"] for one in found["none"]]
        for method, answers in found.items():
            assert [one["tokens"] for one in answers] == expected, (workload, method)


def _cells(rounds: Sequence[Found], method: str) -> str:
    """Tokens a second, how many times those without drafts, share of drafts that were right, tokens a step."""
    rates, ratios = [], []
    for found in rounds:
        rate, plain = (
            sum(len(one["tokens"]) - 1 for one in found[name]) / sum(one["seconds"] for one in found[name])
            for name in (method, "none")
        )
        rates.append(rate)
        ratios.append(rate / plain)
    answers = [one for found in rounds for one in found[method]]
    drafted, accepted, steps = (sum(one[key] for one in answers) for key in ("drafted", "accepted", "steps"))
    tokens = sum(len(one["tokens"]) - 1 for one in answers)
    share = f"{accepted / drafted:.0%}" if drafted else ""
    return (
        f"{statistics.median(rates):.0f} | {statistics.median(ratios):.2f} | {share} | {tokens / steps:.2f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation",
        description="Drafting here and in llama.cpp, with the same models and prompts, by turns.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workloads", nargs="+", default=["stories", "questions", "code"])
    add("--work", type=Path, default=DEFAULT, help="folder of environments and models (default: %(default)s)")
    add("--rounds", type=int, default=5)
    add("--prompts", type=int, default=5)
    add("--outputs", type=int, default=200, help="tokens of each answer (default: 200)")
    add("--threads", type=int, default=2, help="for both engines (default: 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
