"""The bundled models against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.models.source import BUNDLED
from headrace.runner.torch_decoder import Decoder
from tests import needs

transformers = needs.lazily("transformers")

STEPS = 60


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_model(name: str, open_decoder: Callable[..., Decoder], paged_run: Any) -> None:
    folder = Path(headrace.__file__).parent / "bundled" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    run = paged_run(open_decoder(name), block_size=16)
    tokens = [0, *torch.randint(6, 2048, (39,), generator=torch.Generator().manual_seed(0)).tolist()]
    start = len(tokens)
    got = [run.step({0: tokens})[0]]
    for _ in range(STEPS):
        tokens.append(int(got[-1][-1].argmax()))
        got.append(run.step({0: tokens[-1:]})[0])

    with torch.inference_mode():
        theirs = model(torch.tensor([tokens])).logits[0]
    assert float((torch.cat(got) - theirs).abs().max()) < 1e-4
    # Both being greedy, equal choices after each of our prefixes mean equal texts.
    assert tokens[start:] == theirs[start - 1 : -1].argmax(-1).tolist()
