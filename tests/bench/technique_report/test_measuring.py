"""The report's measurements, on a tiny model: what must hold whatever the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import needs

needs.native()

from headrace.bench.measure import run_workload  # noqa: E402
from headrace.bench.model.subject import load_subject  # noqa: E402
from headrace.bench.report import Row  # noqa: E402
from headrace.bench.technique_report import attention_child  # noqa: E402
from headrace.bench.technique_report.kv_memory import kv_rows  # noqa: E402
from headrace.bench.technique_report.quality import quality_rows  # noqa: E402
from headrace.bench.technique_report.sections import SECTION, SECTIONS  # noqa: E402
from headrace.bench.technique_report.techniques import (  # noqa: E402
    Recording,
    drafted,
    predicted_rates,
    technique_rows,
    techniques,
)
from headrace.bench.technique_report.traffic import Sizes, batch_rows, chunking_rows, prefix_rows, prompt_rows  # noqa: E402
from headrace.bench.technique_report.workload import requests  # noqa: E402
from headrace.config import EngineConfig  # noqa: E402
from headrace.evaluation.documents import BUNDLED_TEXTS, read_records  # noqa: E402
from headrace.sim.profile import Profile  # noqa: E402

TINY = EngineConfig("shape:tiny", max_model_len=512)
PROFILE = Profile("invented", "data sheet", ((1e9, 1e10),), {"f32": 1e10})


def silent(what: str) -> None:
    pass


def check(rows: list[Row]) -> None:
    """Every figure of its section that a row has is one that the page knows, and a number."""
    for row in rows:
        section = SECTIONS[str(row.labels[SECTION])]
        assert set(row.values) & set(section.columns)
        assert all(
            value == value and value >= 0 for name, value in row.values.items() if "increase" not in name
        )


@pytest.mark.long
def test_exact_techniques_give_the_same_answers_and_each_is_compared_with_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.bench.technique_report.techniques.FEWEST", 6)
    rows = list(
        technique_rows(
            TINY, drafter="ngram", profile=PROFILE, price_per_hour=3.6, seconds=0.01, runs=2, progress=silent
        )
    )
    check(rows)
    names = [str(row.labels["technique"]) for row in rows]
    assert names == [one.name for one in techniques("ngram")]
    for at, row in enumerate(rows):
        assert (row.labels["against"] in names[:at]) == (at > 0)
    exact = {row.labels["technique"]: row.values["same_answers"] for row in rows[1:]}
    changed = ("int8 weights", "int4 weights", "int8 KV cache", "all together")
    assert all(same == 1.0 for name, same in exact.items() if name not in changed)
    assert all("predicted_tokens_per_s" in row.values for row in rows)
    assert rows[3].values["cost_per_million"] == pytest.approx(1000 / rows[3].values["output_tokens_per_s"])
    # Weights of fewer bits are smaller, and a contiguous cache holds less than it reserves.
    sizes = {row.labels["technique"]: row.values["weight_bytes"] for row in rows}
    assert sizes["int4 weights"] < sizes["int8 weights"] < sizes["prefix caching"]


def test_predictions_count_the_steps_of_the_drafter() -> None:
    """The same shapes of the model's steps, with drafts after them and without."""
    subject = load_subject(EngineConfig("tale", speculative="tale-draft", max_num_seqs=4, max_model_len=512))
    recording = Recording(subject.parts.executor)
    arrivals = requests(3, subject.parts.tokenizer, subject.vocab_size, rate_per_s=1e6)
    run = run_workload(subject.parts.engine, recording, arrivals)
    shapes, resolved = [step.shape for step in run.steps], subject.parts.resolved
    drafts = drafted(resolved, recording.steps)
    assert drafts is not None and sum(one.drafted for one in drafts) == sum(
        len(part.draft) for _, result in recording.steps for part in result.results
    )
    free, priced = (
        predicted_rates(subject, shapes, run.output_tokens, PROFILE, one)["predicted_tokens_per_s"]
        for one in ((), drafts)
    )
    assert 0.5 * free < priced < free
    assert drafted(replace(resolved, speculative="ngram,tale-draft"), recording.steps) is None
    assert predicted_rates(subject, shapes, run.output_tokens, PROFILE, None) == {}


def test_traffic() -> None:
    subject = load_subject(TINY)
    sizes = Sizes((1, 2), (64, 128, 4096), 1).within(512)
    assert sizes.prompts == (64, 128)
    batches = list(batch_rows(subject, sizes, PROFILE, None, silent))
    prompts = list(prompt_rows(subject, sizes, PROFILE, silent))
    prefixes = list(prefix_rows(subject, sizes, silent))
    check(batches + prompts + prefixes)
    assert [row.labels["batch"] for row in batches] == [1, 2]
    assert [row.labels["prefix"] for row in prefixes] == ["computed", "prefix hit"] * 2
    assert prefixes[0].values["speedup"] == 1.0


@pytest.mark.long
def test_long_prompts_beside_streams() -> None:
    rows = list(chunking_rows(TINY, silent))
    check(rows)
    assert [row.labels["chunk"] for row in rows] == [512, 512, 128]
    assert all(row.values["itl_p50_s"] <= row.values["itl_p99_s"] <= row.values["itl_most_s"] for row in rows)


@pytest.mark.parametrize("way", [attention_child.tiled, attention_child.materialised])
def test_both_attentions_run(way: Callable[..., Callable[[], None]]) -> None:
    way(96, 4, 2, 32, "portable", 1)()


def test_kv_memory_is_what_the_formula_gives() -> None:
    by_model = {row.labels["model"]: row.values for row in kv_rows()}
    assert (
        by_model["llama-2-7b"]["token_bytes"] == 2 * 32 * 32 * 128 * 2
    )  # k and v, layers, heads, width, bytes
    assert by_model["llama-3.1-8b"]["kv_4k_bytes"] == 4096 * 2 * 32 * 8 * 128 * 2
    assert by_model["deepseek-v2-lite"]["token_bytes"] == 27 * (512 + 64) * 2
    windows = by_model["gemma-3-12b"]
    assert windows["kv_128k_bytes"] < 32 * windows["kv_4k_bytes"]


@pytest.mark.long
def test_quality_of_the_bundled_model() -> None:
    rows = list(quality_rows(EngineConfig("tale"), read_records(BUNDLED_TEXTS), 1000, silent))
    check(rows)
    kl = {row.labels["format"]: row.values["kl"] for row in rows}
    assert 0 < kl["int8 KV cache"] < kl["int8 weights"] < kl["int4 weights"] < 0.1
