"""An output ends inside an accepted run of drafts where it ends without drafts: at stop strings, tokens and limits."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import LLM, RequestOutput, SamplingParams
from headrace.core.types import StepPlan, StepResult
from headrace.runner.executor import ModelExecutor
from tests import needs

needs.native()

PROMPT = "Once upon a time there was a"


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens that each step gave."""
    counts: list[int] = []
    execute = ModelExecutor.execute

    def counted(self: ModelExecutor[Any], plan: StepPlan) -> StepResult:
        result = execute(self, plan)
        counts.extend(len(one.tokens) for one in result.results)
        return result

    monkeypatch.setattr(ModelExecutor, "execute", counted)
    return counts


@pytest.mark.parametrize(
    ("method", "temperature"),
    [
        ("tale-draft", 0.0),
        ("tale-medusa", 0.7),
        pytest.param("tale-draft", 0.7, marks=pytest.mark.long),
        pytest.param("tale-medusa", 0.0, marks=pytest.mark.long),
    ],
)
def test_a_stop_string_inside_an_accepted_run(method: str, temperature: float, emitted: list[int]) -> None:
    options = {"num_threads": 1, "show_progress": False, "enable_prefix_caching": False}
    plain = LLM("tale", **options)
    drafting = LLM("tale", speculative=method, adaptive_speculation=False, **options)
    params: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 60, "logprobs": 1}

    def written(llm: LLM, stop: str | None = None) -> RequestOutput:
        (output,) = llm.generate(PROMPT, SamplingParams(**params, stop=stop), use_tqdm=False)
        return output

    text = written(plain).outputs[0].text
    inside = 0
    for start in range(40, len(text) - 8, 23):
        stop = text[start : start + 5]
        expected = written(plain, stop)
        emitted.clear()
        found = written(drafting, stop)
        ours, theirs = found.outputs[0], expected.outputs[0]
        assert ours.finish_reason == "stop" and stop not in ours.text
        assert (ours.text, ours.token_ids, ours.logprobs) == (theirs.text, theirs.token_ids, theirs.logprobs)
        assert found.metrics.num_output_tokens == expected.metrics.num_output_tokens == len(theirs.token_ids)
        inside += sum(emitted) > len(ours.token_ids)  # drafts after the stop string were accepted, too
    assert inside >= 2


ENDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 300},
    {"temperature": 0.7, "max_tokens": 300, "min_tokens": 4},
    {"temperature": 0.0, "max_tokens": 60, "stop": ["."], "min_tokens": 9},
    {"temperature": 0.7, "max_tokens": 60, "min_tokens": 21},
    {"temperature": 0.0, "max_tokens": 13},
    {"temperature": 1.0, "max_tokens": 60, "min_tokens": 33, "presence_penalty": 0.3},
)


@pytest.mark.parametrize(
    "method",
    ["tale-draft", *(pytest.param(m, marks=pytest.mark.long) for m in ("tale-medusa", "tale-eagle"))],
)
def test_ends_inside_an_accepted_run(method: str, emitted: list[int]) -> None:
    options = {"num_threads": 1, "show_progress": False}
    plain = LLM("tale", **options)
    (full_stop,) = plain.tokenizer.encode(".", add_special_tokens=False)
    params = [
        SamplingParams(**end, seed=at, logprobs=1, stop_token_ids=[full_stop] if at in (3, 5) else None)
        for at, end in enumerate(ENDS)
    ]
    prompts = [PROMPT] * len(params)
    expected = plain.generate(prompts, params, use_tqdm=False)
    emitted.clear()
    found = LLM("tale", speculative=method, adaptive_speculation=False, **options).generate(
        prompts, params, use_tqdm=False
    )
    reasons = set()
    for one, other in zip(found, expected, strict=True):
        ours, theirs = one.outputs[0], other.outputs[0]
        assert (ours.text, ours.token_ids, ours.logprobs) == (theirs.text, theirs.token_ids, theirs.logprobs)
        assert (ours.finish_reason, ours.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
        assert one.metrics.num_output_tokens == other.metrics.num_output_tokens == len(ours.token_ids)
        assert one.metrics.num_accepted_tokens < one.metrics.num_drafted_tokens
        reasons.add((ours.finish_reason, ours.stop_reason))
    assert reasons == {("stop", None), ("stop", "."), ("stop", full_stop), ("length", None)}
    assert sum(emitted) > sum(len(one.outputs[0].token_ids) for one in found)  # right drafts after an end
