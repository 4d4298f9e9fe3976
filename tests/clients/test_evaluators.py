"""Programs that we did not write, as their users install them, against `headrace serve tale`.

Each gets an environment of its own in a temporary folder, which takes minutes and a package index.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from tests.environments import environment
from tests.server.conftest import TALE, ServeProcess, tale  # noqa: F401  # the fixture

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

LM_EVAL = Path(__file__).parent / "lm_eval"
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def test_lm_eval_scores_as_the_offline_engine_does(tale: ServeProcess, tmp_path: Path) -> None:  # noqa: F811
    programs = environment(tmp_path / "env", "lm-eval[api]")
    work = tmp_path / "work"
    subprocess.run([LM_EVAL / "run.sh", programs / "python", tale.url, work], check=True, env=OFFLINE)
    (report,) = (work / "results").rglob("results_*.json")
    scored = json.loads(report.read_text())["results"]["next_sentence"]["acc,none"]
    questions = [json.loads(line) for line in (work / "next_sentence.jsonl").read_text().splitlines()]
    assert scored == pytest.approx(offline_accuracy(questions))
    assert scored > 0.6  # 0.25 by chance


def offline_accuracy(questions: list[dict[str, Any]]) -> float:
    """The share of questions whose true answer is the likeliest, summed over its tokens."""
    llm = LLM("tale", num_threads=1, show_progress=False)
    right = 0
    for question in questions:
        context = llm.tokenizer.encode(question["query"])
        prompts = [llm.tokenizer.encode(f"{question['query']} {choice}") for choice in question["choices"]]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)
        sums = []
        for output in outputs:
            entries = (output.prompt_logprobs or [])[len(context) :]
            sums.append(sum(next(iter(entry.values())).logprob for entry in entries if entry))
        right += sums.index(max(sums)) == question["gold"]
    return right / len(questions)


def test_guidellm_measures_a_run(tale: ServeProcess, tmp_path: Path) -> None:  # noqa: F811
    programs = environment(tmp_path / "env", "guidellm")
    report = tmp_path / "report.json"
    subprocess.run(
        [
            programs / "guidellm", "run", "--backend", f"kind=openai_http,target={tale.url},model=tale",
            "--tokenizer", f"kind=huggingface_auto,model={TALE}",
            "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32",
            "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=40",
            "--output", f"kind=json,path={report}", "--disable-progress",
        ],
        check=True, env=OFFLINE,
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] >= 40 and totals["errored"] == 0
