"""Structured output offline: `LLM.generate` with grammars, and errors before anything is run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace import LLM, Grammar, InvalidParams, SamplingParams
from tests import needs

needs.package("llguidance")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tale", show_progress=False, num_threads=1)


def test_outputs_follow_their_grammars(llm: LLM) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 4}
    params = [
        SamplingParams(grammar=Grammar("choice", ["red", "green"]), seed=1),  # type: ignore[arg-type]
        SamplingParams(grammar=Grammar("json_schema", schema), seed=2, n=3),  # type: ignore[arg-type]
        SamplingParams(seed=3, max_tokens=20),
    ]
    colour, numbers, free = llm.generate(["A colour:", "Numbers:", "Once"], params, use_tqdm=False)
    assert colour.outputs[0].text in ("red", "green") and colour.outputs[0].finish_reason == "stop"
    for output in numbers.outputs:
        made = json.loads(output.text)
        assert 2 <= len(made) <= 4 and set(made) <= {1, 2, 3}
    assert len(free.outputs[0].token_ids) == 20
    *_, last = llm.stream("A colour:", params[0])
    assert last.outputs[0].text == colour.outputs[0].text


def test_a_bad_grammar_is_refused_before_anything_is_run(llm: LLM) -> None:
    before = llm.stats().scheduler.steps
    good, bad = SamplingParams(max_tokens=3), SamplingParams(grammar=Grammar("regex", "["))
    with pytest.raises(InvalidParams, match="unclosed"):
        llm.generate(["Once", "upon"], [good, bad], use_tqdm=False)
    assert llm.stats().scheduler.steps == before


def test_random_weights_without_a_tokenizer_follow_none() -> None:
    shape = LLM("shape:tiny", show_progress=False, num_threads=1)
    with pytest.raises(InvalidParams, match="tokenizer"):
        shape.generate([[1, 2]], SamplingParams(grammar=Grammar("json_object")), use_tqdm=False)


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['llguidance'] = None\n"
        "from headrace import LLM, Grammar, MissingDependency, SamplingParams\n"
        "llm = LLM('tale', show_progress=False, num_threads=1)\n"
        "try: llm.generate('x', SamplingParams(grammar=Grammar('json_object')), use_tqdm=False)\n"
        "except MissingDependency as error: print(error)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "the package llguidance of the extra 'grammar', which is not installed" in outcome.stdout
    assert "[grammar]'" in outcome.stdout  # after the command that installs it
