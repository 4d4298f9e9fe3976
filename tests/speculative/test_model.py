"""The draft model reads each token once, and a draft is what it would have drawn itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from headrace import LLM, SamplingParams
from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.types import NewRequest
from headrace.errors import ConfigError, ModelNotFound
from headrace.models.source import BUNDLED_FOLDER
from headrace.runner.executor import ModelExecutor
from headrace.runner.sampling.native import NativeSampler
from headrace.runner.step import Step
from headrace.speculative.control import Speculation
from headrace.speculative.model import ModelMethod, _widened
from tests import needs

needs.native()


class Read:
    """Counts the tokens that a model reads."""

    def __init__(self, model: Any) -> None:
        self._model, self.steps, self.tokens = model, 0, 0
        self.largest = 0

    def forward(self, step: Step) -> Any:
        self.steps, self.tokens = self.steps + 1, self.tokens + len(step.ids)
        self.largest = max(self.largest, len(step.ids))
        return self._model.forward(step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def drive(requests: list[NewRequest], **options: object) -> tuple[Any, Read]:
    config: dict[str, object] = {"model": "tale", "speculative": "tale", "num_threads": 1, "dtype": "float32"}
    config["adaptive_speculation"] = False
    parts = assemble(EngineConfig.from_kwargs(**config | {"kv_cache_memory": "16MiB"} | options))
    assert isinstance(parts.executor, ModelExecutor)
    speculation = parts.executor.drafter
    assert isinstance(speculation, Speculation)
    (method,) = speculation.methods
    assert isinstance(method, ModelMethod)
    read = Read(method.model)
    method.model = read  # type: ignore[assignment]
    for request in requests:
        parts.engine.add(request, 0.0)
    outputs = []
    while parts.engine.has_work:
        outputs += parts.engine.finish(parts.executor.execute(parts.engine.begin(0.0)), 0.0)
    assert not method._progress and not speculation._sequences  # of sequences that have ended nothing is kept
    return outputs, read


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    sampled = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, seed=3, ignore_eos=True)
    outputs, read = drive([NewRequest("a", tuple(range(20, 60)), sampled)], num_speculative_tokens=4)
    stats = outputs[-1].stats
    assert stats.num_drafted == stats.num_accepted > 25
    assert 40 + 34 <= read.tokens < 40 + 39  # each token once, but the last ones, which no draft follows


@pytest.mark.parametrize("name", ["tale", "tale-medusa", "tale-eagle"])
def test_no_log_probabilities_are_computed_for_drafts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, scored = 0, NativeSampler._logprobs

    def count(self: NativeSampler, *args: Any) -> Any:
        nonlocal rows
        rows += len(args[1])
        return scored(self, *args)

    monkeypatch.setattr(NativeSampler, "_logprobs", count)
    options = {"num_threads": 1, "adaptive_speculation": False, "speculative_tree_nodes": 0}
    llm = LLM("tale", speculative=name, show_progress=False, **options)
    params = SamplingParams(max_tokens=20, temperature=0.0, logprobs=2, ignore_eos=True)
    llm.generate("Once upon a time", params, use_tqdm=False)
    counts = llm.stats().scheduler
    assert counts.draft_tokens > 5 and rows == counts.steps + counts.draft_tokens


def test_a_long_prompt_is_read_in_steps_that_fit() -> None:
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    requests = [NewRequest(name, tuple(range(20, 140)), greedy, cache_salt=name) for name in "ab"]
    _, read = drive(requests, max_num_batched_tokens=16)
    assert read.largest <= 16 and read.tokens >= 240


def test_a_vocabulary_with_another_padding() -> None:
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert _widened(logits, 3) is logits
    assert _widened(logits, 2).tolist() == [[0, 1], [3, 4]]
    assert _widened(logits, 4).tolist() == [[0, 1, 2, -np.inf], [3, 4, 5, -np.inf]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speculative": "shape:llama-3.1-8b"}, "both need the same vocabulary"),
        (
            {"speculative": "nowhere"},
            "there is no model 'nowhere'.*; speculative also takes auto, ngram, history, mtp",
        ),
        ({"speculative": "tale-draft", "max_model_len": 4096}, "longer than"),
    ],
)
def test_a_model_that_cannot_draft_is_refused_at_once(options: dict[str, str], words: str) -> None:
    with pytest.raises((ConfigError, ModelNotFound), match=words):
        LLM("tale", show_progress=False, **options)  # type: ignore[arg-type]


def test_tokens_that_a_smaller_table_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A draft model with less padding reads another token in their place, and drafts on, for its neighbours too."""
    size = 2000
    shutil.copytree(BUNDLED_FOLDER / "tale-draft", tmp_path / "small")
    tensors = load_file(tmp_path / "small" / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file(tensors | {name: tensors[name][:size].clone()}, tmp_path / "small" / "model.safetensors")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    (tmp_path / "small" / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, allowed_token_ids=(30, 31, 2047))
    requests = [NewRequest("a", (2047, 20, 2000, 21), greedy), NewRequest("b", (30, 31), greedy)]
    outputs, _ = drive(requests, speculative=str(tmp_path / "small"))
    ended = [one for one in outputs if one.finish_reason is not None]
    assert len(ended) == 2 and all(one.stats.num_drafted for one in ended)
    assert not caplog.records
