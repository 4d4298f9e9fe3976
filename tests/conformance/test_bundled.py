"""The bundled models against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import headrace
from headrace.models.decoder import Decoder
from headrace.models.source import BUNDLED

STEPS = 200


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_model(name: str, open_decoder: Callable[..., Decoder], paged_run: Any) -> None:
    folder = Path(headrace.__file__).parent / "bundled" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = torch.randint(6, 2048, (40,), generator=torch.Generator().manual_seed(0))
    prompt[0] = 0
    with torch.inference_mode():
        theirs = model.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=1,
        )[0]
        logits = model(theirs[None]).logits[0]

    run = paged_run(open_decoder(name), block_size=16)
    got = [run.step({0: prompt.tolist()})[0]]
    tokens = prompt.tolist()
    for _ in range(STEPS):
        tokens.append(int(got[-1][-1].argmax()))
        got.append(run.step({0: tokens[-1:]})[0])
    assert tokens == theirs.tolist()
    assert float((torch.cat(got) - logits).abs().max()) < 1e-4
