"""Attention sinks through the whole decoder against StreamingLLM as published (Xiao et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headrace.models.families import read_spec
from headrace.models.rope import inverse_frequencies
from headrace.models.source import resolve_model
from headrace.models.streaming import with_streaming
from headrace.ops import reference
from headrace.runner.torch_decoder import Decoder

SINKS, WINDOW = 3, 21
Open = Callable[..., Decoder]


def published(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """One token at a time over a cache of unrotated keys, which are rotated by their index in the cache."""
    spec, weights = with_streaming(read_spec(resolve_model("tale").config), SINKS, WINDOW), decoder.weights
    matrices = {name: matrix.weight for name, matrix in weights.matrices.items()}
    norms, head = weights.vectors, weights.matrices.get("head", weights.matrices["embed"]).weight
    caches: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in spec.layers]
    rows = []
    for token in tokens:
        x = weights.tables["embed"][token][None]  # [1, H]
        for index, (layer, cache) in enumerate(zip(spec.layers, caches, strict=True)):
            mixer = layer.mixer
            kv_width = mixer.num_kv_heads * mixer.head_dim
            normed = reference.rms_norm(x, norms[f"{index}.input_norm"], spec.norm.eps)
            q, k, v = (normed @ matrices[f"{index}.qkv"].T).split(
                [normed.shape[1], kv_width, kv_width], dim=1
            )
            cache.append((k.view(-1, mixer.head_dim), v.view(-1, mixer.head_dim)))
            if len(cache) > SINKS + WINDOW:
                del cache[SINKS]
            frequencies, factor = inverse_frequencies(mixer.rope)
            table = torch.tensor(frequencies, dtype=torch.float64)
            turns = reference.rope_tables(torch.arange(len(cache)), table, factor)
            keys = reference.apply_rope(torch.stack([key for key, _ in cache]), *turns)  # [L, Hkv, D]
            query = reference.apply_rope(q.view(1, -1, mixer.head_dim), turns[0][-1:], turns[1][-1:])[0]
            query = query.view(mixer.num_kv_heads, -1, mixer.head_dim)  # [Hkv, G, D]
            share = (torch.einsum("hgd,lhd->hgl", query, keys) * mixer.scale).softmax(-1)
            mixed = torch.einsum("hgl,lhd->hgd", share, torch.stack([value for _, value in cache]))
            x = x + mixed.reshape(1, -1) @ matrices[f"{index}.out"].T
            normed = reference.rms_norm(x, norms[f"{index}.post_norm"], spec.norm.eps)
            inner = reference.gated_linear(normed, matrices[f"{index}.gate_up"], "silu", None)
            x = x + inner @ matrices[f"{index}.down"].T
        rows.append(reference.rms_norm(x, norms["final_norm"], spec.norm.eps) @ head.T)
    return torch.cat(rows)


@pytest.mark.parametrize("force", ["torch", "reference"])
def test_decoder_equals_the_published_scheme(force: str, open_decoder: Open, paged_run: Any) -> None:
    decoder = open_decoder("tale", force=force, change=lambda spec: with_streaming(spec, SINKS, WINDOW))
    tokens = torch.randint(6, 2048, (130,), generator=torch.Generator().manual_seed(0)).tolist()
    want = published(decoder, tokens)
    run = paged_run(decoder)
    got = [run.step({0: tokens[:50]})[0], run.step({0: tokens[50:61]})[0]]
    got += [run.step({0: [token]})[0] for token in tokens[61:]]
    assert run.total_dropped > 0
    assert float((torch.cat(got) - want).abs().max()) < 1e-4


def test_a_short_stream_is_the_plain_model(open_decoder: Open, paged_run: Any) -> None:
    tokens = torch.randint(6, 2048, (SINKS + WINDOW,), generator=torch.Generator().manual_seed(1)).tolist()
    plain = paged_run(open_decoder("tale")).step({0: tokens})[0]
    streaming = open_decoder("tale", change=lambda spec: with_streaming(spec, SINKS, WINDOW))
    assert float((paged_run(streaming).step({0: tokens})[0] - plain).abs().max()) < 1e-4


def test_a_million_tokens_in_the_logits_do_not_drift(open_decoder: Open, paged_run: Any) -> None:
    """Without sinks only distances count, so the same window of text gives the same logits at any position."""
    decoder = open_decoder("shape:tiny", change=lambda spec: with_streaming(spec, 0, 8))
    tokens = torch.randint(256, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    near = paged_run(decoder).step({0: tokens})[0]
    run = paged_run(decoder)
    run.length[0] = 8 * 125_000  # as if that many tokens had passed and left
    run.tables[0, 0] = [run.free[0].pop()] * 125_000
    for layer_kv in run.kv:  # whatever they held
        layer_kv.key.fill_(0.5)
        layer_kv.value.fill_(-0.5)
    far = run.step({0: tokens})[0]
    settled = 2 * 8  # two layers, each of which attends 7 tokens back, must not reach in front of the text
    assert float((near[settled:] - far[settled:]).abs().max()) < 1e-4
