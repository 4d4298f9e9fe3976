"""Two hundred greedy tokens of every family are those of transformers: in float32 on the kernels, from both kinds of
files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs
from tests.conformance.test_families import CASES, expected_logits, prompt
from tests.conformance.test_gguf import FAMILIES
from tests.conformance.test_native import open_run, widened
from tests.gguf_files import write_gguf
from tests.instruction_sets import BEST

pytestmark = pytest.mark.long

TOKENS = 200

OTHERWISE = {"llama-dynamic"}
"""transformers stretches its base with the length that it has seen."""

transformers = needs.lazily("transformers")


def check(files: Path, model: transformers.PreTrainedModel) -> None:
    """The tokens from these files are those of the model."""
    run = open_run(files, BEST)
    tokens = prompt(40)
    next = int(run.step({0: tokens})[0][-1].argmax())
    for _ in range(TOKENS - 1):
        tokens.append(next)
        next = int(run.step({0: [next]})[0][-1].argmax())
    expected = expected_logits(model, tokens).argmax(-1)[39:]
    assert [*tokens[40:], next] == expected.tolist()


@pytest.mark.parametrize("name", [name for name in CASES if name not in OTHERWISE])
def test_greedy_tokens(name: str, tmp_path: Path) -> None:
    check(tmp_path, widened(CASES[name]).build(tmp_path))


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_of_gguf_files(name: str, tmp_path: Path) -> None:
    model = widened(CASES[name]).build(tmp_path)
    check(write_gguf(tmp_path, tmp_path / "m.gguf", "F32"), model)
