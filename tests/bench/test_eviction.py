"""The benchmark of eviction: its tasks, and what it finds on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.quality.eviction import (
    ABSENT,
    CONTINUATION,
    FULL,
    NEAR,
    RECENT,
    SNAPKV,
    make_tasks,
    measure,
    variants,
)
from headrace.cli import main
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.evaluation.documents import BUNDLED_TEXTS, read_records
from tests import needs

needs.native()

TALE = EngineConfig("tale", num_threads=1)


def test_needles_are_told_by_the_beginning_of_the_text_alone() -> None:
    tasks = make_tasks(TALE, read_records(BUNDLED_TEXTS), prompt=200, output=32, samples=6)
    assert [task.kind for task in tasks] == [CONTINUATION, ABSENT] * 6
    assert {(len(task.prompt), len(task.target)) for task in tasks} == {(200, 32)}
    assert sum(len(task.needles) for task in tasks) > 0
    for whole, absent in zip(tasks[::2], tasks[1::2], strict=True):
        assert (whole.target, whole.needles) == (absent.target, absent.needles)
        assert whole.prompt[-NEAR:] == absent.prompt[-NEAR:] and whole.prompt != absent.prompt
        for at in whole.needles:
            assert whole.target[at] in whole.prompt and whole.target[at] not in whole.prompt[-NEAR:]


def test_every_variant_predicts_the_same_tokens() -> None:
    """The whole cache, and a budget that holds all, give the same numbers; a small one does not."""
    tasks = make_tasks(TALE, read_records(BUNDLED_TEXTS), prompt=160, output=32, samples=2)
    found = {}
    for budget in (512, 24):
        for method, _, config in variants(TALE, [budget]):
            found[method, budget] = measure(config, tasks)
    assert found[FULL, 512][0] == found[SNAPKV, 512][0] == found[RECENT, 512][0]
    assert found[SNAPKV, 512][1] == 0 and found[SNAPKV, 24][1] == found[RECENT, 24][1] == 4 * (136 + 30)
    assert found[FULL, 24][0] != found[SNAPKV, 24][0] != found[RECENT, 24][0]
    assert all(len(one.logprobs) == len(one.best) == 32 for one in found[SNAPKV, 24][0])


def test_texts_that_are_too_short(tmp_path: Path) -> None:
    data = tmp_path / "short.txt"
    data.write_text("A fish.\n\nA bird.")
    with pytest.raises(ConfigError, match="the texts have"):
        make_tasks(TALE, read_records(data), prompt=100, output=8, samples=1)


def test_one_text_among_short_ones_does_not_shorten_prompts(tmp_path: Path) -> None:
    """What stands in place of a text's beginning comes from the others, which must fill the prompt."""
    texts = read_records(BUNDLED_TEXTS)[:12]
    long = " ".join(record["text"] for record in texts)
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in (long, "A dog ran.")))
    with pytest.raises(ConfigError, match="0 of them at least 112 with enough others"):
        make_tasks(TALE, read_records(data), prompt=512, output=48, samples=1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--shares", "0"], "--shares are above 0"),
        (["--shares", "2"], "--shares are above 0"),
        (["--speculative", "ngram"], "cannot run with speculative"),
        (["--data", "/nowhere"], "cannot read /nowhere"),
        (
            ["--prompt-len", "1000"],
            "prompts of 1000 tokens and 48 after them are longer than max_model_len 1024",
        ),
    ],
)
def test_bad_input_is_refused_before_the_work(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "eviction", *words]) != 0
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_eviction_window": 50}, "kv_eviction_window 50 is greater than kv_eviction_budget 32"),
        ({"kv_eviction_sinks": 64}, "kv_eviction_sinks 64 leaves no recent token in a budget of 32"),
        ({"max_num_batched_tokens": 64}, "or raise --max-num-batched-tokens to 95"),
    ],
)
def test_every_variant_is_planned_before_the_first_runs(options: dict[str, int], why: str) -> None:
    config = EngineConfig.from_kwargs(model="tale", kv_eviction="snapkv", **options)
    with pytest.raises(ConfigError, match=why):
        variants(config, [256, 32])


@pytest.mark.long
def test_attention_keeps_what_the_text_needs(tmp_path: Path) -> None:
    """On held-out stories SnapKV beats sinks and recent tokens, and the most where the budget is small."""
    out = tmp_path / "out.json"
    words = [
        "--samples",
        "64",
        "--shares",
        "0.25",
        "0.125",
        "--json",
        str(out),
        "--plot",
        str(tmp_path / "x.svg"),
    ]
    assert main(["bench", "eviction", "--num-threads", "1", *words]) == 0
    rows = {
        (row["labels"]["method"], row["labels"]["budget"]): row["values"]
        for row in json.loads(out.read_text())["rows"]
    }
    for budget in (128, 64):
        snapkv, recent = rows[SNAPKV, budget], rows[RECENT, budget]
        assert snapkv["perplexity"] < recent["perplexity"]
        assert snapkv["needle_probability"] > recent["needle_probability"]
        assert snapkv["kept"] == budget / 512
    assert rows[SNAPKV, 64]["needle_recall"] > rows[RECENT, 64]["needle_recall"] + 0.1
    assert rows[FULL, 512]["needle_recall"] > 0.7 > 0.4 > rows[FULL, 512]["guessed_recall"]
    assert (tmp_path / "x.svg").stat().st_size > 1000
