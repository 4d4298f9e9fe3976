"""A stop string ends an output inside an accepted run of drafts where it ends it without drafts."""

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


@pytest.mark.parametrize("method", ["tale-draft", "tale-medusa"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
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
