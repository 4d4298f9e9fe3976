"""Distilling the draft model: batches line up with what the teacher said, and go on; the loss is a divergence."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from tools.tale.corpus import Document, document
from tools.tale.distil import TOP, Batches, Texts, losses, question
from tools.tale.model import Llama, Shape

SMALL = Shape(32, 1, 1, 1, 32, vocab_size=64)


def texts(taught: bool) -> Texts:
    """Documents of 3 to 30 tokens; the teacher's likeliest token is the one that follows."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 30, 40).astype(np.int32)
    ids = rng.integers(6, 64, lengths.sum()).astype(np.uint16)
    if not taught:
        return Texts(ids, lengths, np.zeros(40, np.int32))
    likely = np.stack([np.roll(ids, -1), *[np.full_like(ids, one) for one in range(TOP - 1)]], axis=1)
    chances = np.tile(np.array([0.5, *[0.1] * (TOP - 1)], np.float16), (len(ids), 1))
    return Texts(ids, lengths, np.full(40, 1, np.int32), likely, chances)


@pytest.mark.parametrize("taught", [False, True])
def test_every_token_counts_once_beside_what_follows_it(taught: bool) -> None:
    batches, count = Batches(texts(taught), 64, 0), 0
    for batch in batches.plan(0):
        ids, counts, likely, _ = batches.tensors(batch)
        assert ids.shape[0] == 1 or ids.numel() <= 64
        for row, at in counts.nonzero().tolist():
            assert likely[row, at, 0] == ids[row, at + 1]
        count += int(counts.sum())
    lengths = batches.texts.lengths
    assert count == int((lengths - 2 if taught else lengths - 1).sum())


def test_batches_go_on_where_they_stopped() -> None:
    batches = Batches(texts(False), 64, 0)
    whole = list(itertools.islice(batches.stream(0), 60))
    assert len(batches.plan(0)) < 50, "two epochs"
    for step in (0, 7, 50):
        assert list(itertools.islice(batches.stream(step), 60 - step)) == whole[step:]


def test_the_loss_is_the_divergence_from_the_teacher() -> None:
    torch.manual_seed(0)
    model, batches = Llama(SMALL), Batches(texts(True), 200, 0)
    batch = batches.tensors(batches.plan(0)[0])
    ids, counts, likely, chances = batch
    assert chances is not None
    loss, right, count = losses(model, batch)
    logp = torch.log_softmax(model(ids), dim=-1).detach()
    total, hits = 0.0, 0
    for row, at in counts.nonzero().tolist():
        p = chances[row, at] / chances[row, at].sum()
        for token, one in zip(likely[row, at].tolist(), p.tolist(), strict=True):
            total += one * (np.log(one) - float(logp[row, at, token]))
        hits += int(logp[row, at].argmax() == likely[row, at, 0])
    assert count == int(counts.sum()) and int(right) == hits
    assert abs(loss.item() - total / count) < 1e-4


def test_requests_end_where_the_teacher_answers() -> None:
    rng = random.Random(0)
    for number in range(60):
        made = document(number)
        asked = question(made, rng)
        assert made.text.startswith(asked) and len(asked) < len(made.text)
        assert asked.endswith("<|assistant|>") is bool(made.messages)
    assert question(Document("one two three four five six seven"), rng).count(" ") < 6
