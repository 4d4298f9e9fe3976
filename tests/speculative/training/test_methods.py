"""Medusa and EAGLE: what they compute, against implementations that go token by token; and that they learn."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from headrace.evaluation.documents import Document
from headrace.speculative.base_model import Ends
from headrace.speculative.heads import EagleLayer
from headrace.speculative.training.data import Batch, Corpus, Model
from headrace.speculative.training.eagle import Eagle
from headrace.speculative.training.fit import FitOptions, accuracies, fit, measure
from headrace.speculative.training.medusa import Medusa
from tests import needs

transformers = needs.lazily("transformers")

V, H = 24, 16
LAYER = EagleLayer(H, 4, 2, 4, 32, 1e-5, 10_000.0)


def model(scale: float = 1.0, cap: float | None = None) -> Model:
    rng = np.random.default_rng(0)
    embedding, head = (rng.standard_normal((V, H)).astype(np.float32) for _ in range(2))
    return Model(Ends(embedding, 2.0, head, rng.standard_normal(V).astype(np.float32), scale, cap))


def corpus(count: int = 6) -> Corpus:
    """Token sequences that count upwards, whose states say which token comes next."""
    rng = np.random.default_rng(1)
    base = model()
    documents, states = [], []
    for _ in range(count):
        ids = (rng.integers(V) + np.arange(rng.integers(8, 14))) % V
        documents.append(Document(tuple(ids.tolist()), int(rng.integers(1, 4))))
        states.append((base._head[(ids + 1) % V] * 2.0).numpy())
    return Corpus(documents, states)


def batch() -> Batch:
    (found,) = corpus().batches(10_000, random.Random(0))
    return found


def eagle() -> Eagle:
    return Eagle(model(), LAYER, torch.Generator().manual_seed(3))


def hf(one: Eagle) -> transformers.LlamaModel:
    """transformers' Llama with the same layer."""
    config = transformers.LlamaConfig(
        hidden_size=H, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, rms_norm_eps=1e-5, rope_theta=10_000.0, vocab_size=V, attn_implementation="eager",
    )  # fmt: skip
    made = transformers.LlamaModel(config).eval()
    tensors = {name.removeprefix("model."): torch.from_numpy(array) for name, array in one.tensors().items()}
    tensors["embed_tokens.weight"] = torch.zeros(V, H)
    tensors.pop("fc.weight")
    made.load_state_dict(tensors)
    return made


def test_eagle_predicts_what_a_draft_gives_token_by_token() -> None:
    one, data, depth = eagle(), batch(), 3
    theirs, fc = hf(one), torch.from_numpy(one.tensors()["model.fc.weight"])
    with torch.no_grad():
        found = one.predict(data, depth)
        ids, states = data.ids[0], data.states[0]
        for last in range(depth, int(data.lengths[0])):
            # True states up to the one that the first drafted token needs, then the predicted ones.
            known = [torch.zeros(H), *states[: last - depth + 1]]
            for d in range(depth):
                read = torch.stack([torch.cat((s, one.model.embed(ids[p]))) for p, s in enumerate(known)])
                predicted = theirs(inputs_embeds=(read @ fc.T)[None]).last_hidden_state[0, -1]
                torch.testing.assert_close(found[d][0, last - depth + 1 + d], predicted, atol=1e-5, rtol=1e-4)
                known.append(predicted)


def test_padding_changes_nothing() -> None:
    one, data = eagle(), batch()
    n = int(data.lengths[0])
    alone = Batch(data.ids[:1, :n], data.states[:1, :n], data.lengths[:1], data.first[:1])
    with torch.no_grad():
        for whole, part in zip(one.predict(data, 2), one.predict(alone, 2), strict=True):
            torch.testing.assert_close(whole[:1, :n], part)


def test_medusa_begins_as_the_head_of_the_model_and_ranks_later_tokens() -> None:
    base = model(scale=0.5, cap=3.0)
    one, data = Medusa(base, 2), batch()
    states = data.states[0, :3]
    expected = 3.0 * torch.tanh(0.5 * (states @ base._head.T + base._bias) / 3.0)
    torch.testing.assert_close(one.head(1, states), expected)
    found, row = one.ranks(data), 0
    for b in range(len(data.ids)):
        for t in range(int(data.first[b]), int(data.lengths[b]) - 3):
            for i in range(2):
                logits = base.logits(data.states[b, t])
                assert found[row, i] == (logits > logits[data.ids[b, t + 2 + i]]).sum()
            row += 1
    assert row == len(found)


MAKERS = {"medusa": lambda: Medusa(model(), 2), "eagle": eagle}


@pytest.mark.parametrize("method", MAKERS)
def test_it_learns_what_comes_next(method: str) -> None:
    data, one = corpus(12), MAKERS[method]()
    before = accuracies(measure(one, data, 256))
    fit(one, data, FitOptions(epochs=60, rate=0.05, batch_tokens=256, seed=5), lambda done, total: None)
    after = accuracies(measure(one, data, 256))
    assert after[0][0] > 0.75 and after[1][0] > 0.75 and max(before[0][0], before[1][0]) < 0.5, after


@pytest.mark.parametrize("method", MAKERS)
def test_the_same_seed_trains_the_same_heads_bit_by_bit(method: str) -> None:
    data, runs, seen = corpus(6), [], []
    for _ in range(2):
        one = MAKERS[method]()
        fit(
            one,
            data,
            FitOptions(epochs=2, rate=0.03, batch_tokens=64, seed=5),
            lambda done, total: seen.append((done, total)),
        )
        runs.append(one.tensors())
    assert seen[-1] == (2 * data.tokens, 2 * data.tokens)
    assert all(np.array_equal(runs[0][name], runs[1][name]) for name in runs[0])
