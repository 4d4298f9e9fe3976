"""Two hundred greedy tokens of every family are those of transformers, in float32 on the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs
from tests.conformance.test_families import CASES, expected_logits, prompt
from tests.conformance.test_native import open_run, widened
from tests.instruction_sets import BEST

pytestmark = pytest.mark.long

TOKENS = 200

OTHERWISE = {"llama-dynamic"}
"""transformers stretches its base with the length that it has seen."""

transformers = needs.lazily("transformers")


@pytest.mark.parametrize("name", [name for name in CASES if name not in OTHERWISE])
def test_greedy_tokens(name: str, tmp_path: Path) -> None:
    model = widened(CASES[name]).build(tmp_path)
    run = open_run(tmp_path, BEST)
    tokens = prompt(40)
    next = int(run.step({0: tokens})[0][-1].argmax())
    for _ in range(TOKENS - 1):
        tokens.append(next)
        next = int(run.step({0: [next]})[0][-1].argmax())
    expected = expected_logits(model, tokens).argmax(-1)[39:]
    assert [*tokens[40:], next] == expected.tolist()
