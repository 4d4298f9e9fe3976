"""A run's record grows process by process and can be continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.limits import roofline_from_json
from benchmarks.peers.plan import Planned
from benchmarks.peers.record import Measured, Record
from headrace.bench.native.roofline import Measurement, Roofline

FACTS = {"settings": {"threads": 2}}


def measured(round_: int, engine: str, value: float | None, reason: str | None = None) -> Measured:
    return Measured(Planned(round_, "l1b", "bf16", engine, "decode1"), value, reason, 1.0, 0.0)


def test_a_record_survives_on_disk(tmp_path: Path) -> None:
    record = Record.begin(tmp_path, FACTS)
    record.add(replace(measured(1, "vllm", 10.0), facts={"kv": "bfloat16"}))
    record.add(measured(2, "vllm", None, "killed"))
    again = Record.begin(tmp_path, FACTS)
    assert again.measured == record.measured
    assert again.has(measured(1, "vllm", 0.0).planned)
    assert not again.has(measured(2, "vllm", 0.0).planned)  # a failure is tried again
    assert not again.has(replace(measured(1, "vllm", 0.0).planned, column="decode8"))
    published = Record.parse(record.publish())
    assert (published.facts, published.measured) == (record.facts, record.measured)
    assert published.engine_facts("l1b", "bf16", "vllm") == {"kv": "bfloat16"}
    assert published.engine_facts("l1b", "bf16", "openvino") == {}


def test_the_higher_of_each_limit_is_kept(tmp_path: Path) -> None:
    def roofline(read: float, peak: float) -> Roofline:
        return Roofline(
            "avx2",
            2,
            1 << 20,
            Measurement(read, read),
            Measurement(9.0, 8.0),
            {"f32": Measurement(peak, peak)},
        )

    record = Record.begin(tmp_path, {"settings": {}, "roofline": None})
    for measured in (roofline(1.0, 6.0), None, roofline(3.0, 5.0)):
        record.add_roofline(measured)
    again = Record.read(tmp_path).facts
    assert roofline_from_json(again["roofline"]) == roofline(3.0, 6.0)
    assert again["rooflines"] == 2


def test_runs_with_other_settings_are_not_mixed(tmp_path: Path) -> None:
    Record.begin(tmp_path, FACTS)
    with pytest.raises(ValueError, match="other settings"):
        Record.begin(tmp_path, {"settings": {"threads": 4}})


def test_samples_hold_one_figure_a_round_and_the_latest_try(tmp_path: Path) -> None:
    record = Record.begin(tmp_path, FACTS)
    for one in (measured(1, "vllm", 1.0), measured(2, "vllm", 2.0), measured(1, "vllm", 3.0)):
        record.add(one)
    assert record.samples() == {("l1b", "bf16", "vllm", "decode1"): [3.0, 2.0]}


def test_reasons_name_cells_without_any_figure(tmp_path: Path) -> None:
    record = Record.begin(tmp_path, FACTS)
    record.add(measured(1, "vllm", None, "killed"))
    record.add(measured(1, "openvino", None, "killed"))
    record.add(measured(2, "openvino", 5.0))
    record.add(measured(2, "vllm", None, "killed again"))
    assert record.reasons() == {("l1b", "bf16", "vllm", "decode1"): "killed again"}
