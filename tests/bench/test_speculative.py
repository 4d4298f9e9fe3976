"""`headrace bench speculative`: drafts beside decoding without them, in the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.model import speculative
from headrace.bench.model.speculative import PLAIN, Case, speculative_rows
from headrace.cli import main
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from tests import needs

needs.native()

TALE = EngineConfig("tale", kv_cache_memory="8MiB", num_threads=1, adaptive_speculation=False)


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one turn: the counts of drafts do not become clearer with time."""
    monkeypatch.setattr(speculative, "ROUND_S", 0.0)


def test_engines_take_turns_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is compared with those without drafts before and after it."""
    monkeypatch.setattr(speculative, "ROUND_S", 1e9)
    monkeypatch.setattr(speculative, "MOST_TURNS", 3)
    plain, drafted = speculative_rows(
        TALE, methods=["ngram"], cases=[Case("stories", 0.0, 1, 4)], repeats=2, progress=lambda text: None
    )
    rates, others = (row.samples["decode_tokens_per_s"] for row in (plain, drafted))
    assert len(rates) == len(others) == 6 and len(set(rates)) > 1
    for first in (0, 3):  # of the second and third turn of each round
        before = 1 / rates[first] + 1 / rates[first + 1]
        assert drafted.samples["speedup"][first] == pytest.approx(others[first] * before / 2)
        assert drafted.samples["speedup"][first + 2] == pytest.approx(others[first + 2] / rates[first + 2])


def test_answers_that_repeat_their_prompt_are_drafted_by_ngrams() -> None:
    said: list[str] = []
    plain, drafted = speculative_rows(
        TALE,
        methods=["ngram"],
        cases=[Case("copy", 0.7, 2, 48)],
        repeats=1,
        progress=said.append,
    )
    assert (plain.labels["method"], drafted.labels["method"]) == (PLAIN, "ngram")
    assert plain.values["speedup"] == 1.0 and "acceptance" not in plain.values
    assert drafted.values["acceptance"] > 0.8 and drafted.values["tokens_per_slice"] > 2
    assert drafted.values["draft_length"] <= 6 and drafted.values["predicted_speedup"] > 0
    assert len(said) == 4  # two engines in turn, and a round that warms up


def test_options_of_drafts_are_not_those_of_decoding_without_them() -> None:
    config = EngineConfig(
        "tale", kv_cache_memory="8MiB", num_threads=1, speculative="tale-eagle", speculative_tree_nodes=4,
        num_speculative_tokens=2, adaptive_speculation=False,
    )  # fmt: skip
    _, drafted = speculative_rows(
        config,
        methods=["tale-eagle"],
        cases=[Case("stories", 0.0, 1, 8)],
        repeats=1,
        progress=lambda text: None,
    )
    assert 2 < drafted.values["draft_length"] <= 4


def test_acceptance_can_be_set_where_weights_are_random() -> None:
    config = EngineConfig("shape:tiny", num_threads=1, kv_cache_memory="8MiB", adaptive_speculation=False)
    _, few, _, many = speculative_rows(
        config,
        methods=["shape:tiny"],
        cases=[Case("random", 0.0, 2, 300)],
        rates=[0.5, 0.8],
        repeats=2,
        progress=lambda text: None,
    )
    assert [row.labels["rate"] for row in (few, many)] == [0.5, 0.8]
    # Of drafts of six tokens, (0.8 + 0.8 ** 2 + …) / 6 = 0.49 are expected to be right.
    assert 0.35 < many.values["acceptance"] < 0.65
    for row in (few, many):
        assert row.values["tokens_per_slice"] == pytest.approx(row.values["expected_per_slice"], rel=0.1)


def test_a_workload_of_words_needs_a_tokenizer() -> None:
    config = EngineConfig("shape:tiny", num_threads=1, kv_cache_memory="8MiB")
    with pytest.raises(ConfigError, match="needs a model with a tokenizer"):
        list(
            speculative_rows(
                config,
                methods=["ngram"],
                cases=[Case("stories", 0.0, 1, 8)],
                repeats=1,
                progress=lambda text: None,
            )
        )


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "speculative",
        "-m",
        "shape:tiny",
        "--methods",
        "shape:tiny",
        "--acceptance-rate",
        "0.9",
    ]
    words += ["--workloads", "random", "--temperatures", "0", "--batch-sizes", "1", "--output-len", "20"]
    assert main([*words, "--repeats", "1", "--num-threads", "1"]) == 0
    assert "speed-up" in capsys.readouterr().out


def test_the_command_takes_options_of_drafts_without_speculative(tmp_path: Path) -> None:
    words = ["bench", "speculative", "-m", "shape:tiny", "--workloads", "random", "--temperatures", "0"]
    words += ["--batch-sizes", "1", "--output-len", "4", "--repeats", "1", "--num-threads", "1"]
    words += ["--num-speculative-tokens", "2", "--acceptance", "rejection", "--json", str(tmp_path / "found")]
    cases = {"ngram": ["--methods", "ngram"], "history": ["--speculative", "history"], "auto": []}
    for method, more in cases.items():
        assert main([*words, *more]) == 0
        found = json.loads((tmp_path / "found").read_text())
        assert found["config"]["methods"] == [method]
        assert [row["labels"]["method"] for row in found["rows"]] == [PLAIN, method]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--temperatures", "0", "nan"], "temperature must be between"),
        (["--methods", "ngram", "a,b"], "names two models"),
        (["--batch-sizes", "1", "5", "--max-num-seqs", "4"], "a batch of 5 needs --max-num-seqs 5; it is 4"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_first_run(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculative, "_run", None)
    assert main(["bench", "speculative", "-m", "shape:tiny", "--workloads", "random", *more]) == 1
    assert message in capsys.readouterr().err
