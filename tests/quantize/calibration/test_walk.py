"""Calibration texts on their way through a model: each as if alone, in memory for its own tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.quantize.calibration import walk
from headrace.runner.batch import LayerKV
from tests.quantize.streams import model, streams
from tests.tiny_checkpoint import CONFIGS


def test_texts_of_different_lengths_are_computed_as_if_alone_in_blocks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, weights = model(tmp_path, CONFIGS["mistral"] | {"num_hidden_layers": 2})
    lengths = (5, 300, 2, 70)
    texts = [
        tuple((7 * at + 3 * number) % 500 for at in range(length)) for number, length in enumerate(lengths)
    ]
    alone = [streams(program, weights, [text]) for text in texts]
    blocks: list[int] = []

    def kept(*parts: Any) -> LayerKV:
        blocks.append(len(parts[0]))
        return LayerKV(*parts)

    monkeypatch.setattr(walk, "LayerKV", kept)
    together = streams(program, weights, texts)
    for rows, *others in zip(together, *alone, strict=True):
        torch.testing.assert_close(rows, torch.cat(others), rtol=1e-4, atol=1e-5)
    assert {*blocks} == {sum(-(-length // walk.BLOCK_SIZE) for length in lengths)}
