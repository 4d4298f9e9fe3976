"""The engine with kv_eviction against transformers whose cache this file cuts: the same tokens stay, at their true
positions, and the log-probabilities of what follows agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.core.eviction import Eviction
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.models.source import BUNDLED_FOLDER
from headrace.ops.reference.eviction import choose_kept
from tests import needs
from tests.test_exactness import run

needs.native()
transformers = needs.lazily("transformers")


def expected_logprobs(path: Path, prompt: list[int], tokens: tuple[int, ...], sizes: Eviction) -> list[float]:
    """Of each of `tokens` after the prompt, which come one by one."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    cache = transformers.DynamicCache()
    found: list[float] = []

    def compute(ids: list[int], start: int) -> Any:
        positions = torch.arange(start, start + len(ids))[None]
        return model(
            torch.tensor([ids]), past_key_values=cache, position_ids=positions, output_attentions=True
        )

    def mass(layers: tuple[torch.Tensor, ...], rows: int) -> list[torch.Tensor]:
        heads = model.config.num_key_value_heads
        return [layer[0, :, -rows:].unflatten(0, (heads, -1)).sum((1, 2)) for layer in layers]  # [Hkv, L]

    def keep(sums: list[torch.Tensor]) -> None:
        for layer, of_layer in zip(cache.layers, sums, strict=True):
            kept = torch.stack(
                [choose_kept(one, sizes.budget, sizes.sinks, sizes.recent) for one in of_layer]
            )
            at = kept[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[-1])
            layer.keys, layer.values = layer.keys.gather(2, at), layer.values.gather(2, at)

    with torch.no_grad():
        out = compute(prompt, 0)
        if len(prompt) > sizes.budget:
            keep(mass(out.attentions, sizes.window))
        point = max(len(prompt), sizes.budget) + sizes.interval
        sums: list[torch.Tensor] = []
        for position, token in enumerate(tokens, len(prompt)):
            found.append(float(out.logits[0, -1].log_softmax(-1)[token]))
            out = compute([token], position)
            if position >= point - sizes.window:
                new = mass(out.attentions, 1)
                for one, before in zip(new, sums, strict=False):
                    one[:, : before.shape[1]] += before
                sums = new
            if position + 1 == point:
                keep(sums)
                sums, point = [], point + sizes.interval
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        (120, Eviction(budget=48, window=8, sinks=4, recent=8, interval=16)),
        (30, Eviction(budget=40, window=8, sinks=2, recent=4, interval=12)),
        (90, Eviction(budget=16, window=4, sinks=2, recent=14, interval=4)),
    ],
    ids=["a long prompt", "a prompt within the budget", "sinks and recent alone"],
)
def test_what_stays_and_its_positions(length: int, sizes: Eviction) -> None:
    rng = random.Random(length)
    prompt = [rng.randrange(100, 2000) for _ in range(length)]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=0)
    options = {
        "kv_eviction_budget": sizes.budget, "kv_eviction_window": sizes.window, "kv_eviction_sinks": sizes.sinks,
        "kv_eviction_recent": sizes.recent, "kv_eviction_interval": sizes.interval,
    }  # fmt: skip
    requests = [NewRequest("a", tuple(prompt), params)]
    plain = run({"model": "tale"}, requests)
    seen = run({"model": "tale", "kv_eviction": "snapkv", **options}, requests)
    logprobs = [one.logprob for one in seen.logprobs["a", 0]]
    assert seen.evicted > 0 and seen.tokens != plain.tokens
    expected = expected_logprobs(BUNDLED_FOLDER / "tale", prompt, seen.tokens["a", 0], sizes)
    assert logprobs == pytest.approx(expected, abs=1e-4)
