"""A run measures what was planned, in turns, and records why a cell stays empty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.peers import run as running
from benchmarks.peers.plan import Group, Rounds
from benchmarks.peers.record import Record
from benchmarks.peers.run import Bench, Settings
from benchmarks.peers.workplace import Workplace
from tests.benchmarks.test_execute import FAKE, SMALL

SETTINGS = Settings(models=("m",), columns=("startup", "decode1"), threads=1, sizes=SMALL)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench of engines whose names select their behaviour; see fake_driver.py."""
    peers = {name: replace(FAKE, name=name) for name in ("good", "other", "broken", "crashing")}
    for name in peers:
        (tmp_path / name).write_bytes(b"weights")
    monkeypatch.setattr(running, "BY_NAME", MappingProxyType(peers))
    monkeypatch.setattr(running, "model_file", lambda peer, model, format_, workplace: tmp_path / peer.name)
    return Bench(
        SETTINGS, Workplace(tmp_path), Record.begin(tmp_path / "run", {"settings": {}}), lambda text: None
    )


def measure(bench: Bench, settings: Settings, *engines: str, format_: str = "int8") -> Record:
    bench._settings = settings
    try:
        bench.measure(Group("m", format_, engines))
    finally:
        bench.close()
    return bench._record


def test_engines_take_turns_and_a_failure_stops_no_other(bench: Bench) -> None:
    record = measure(bench, replace(SETTINGS, rounds=Rounds(2, 2)), "good", "crashing", "broken")
    figures = [
        (one.planned.round, one.planned.column, one.planned.engine) for one in record.measured if one.figure
    ]
    assert figures[:3] == [(1, "startup", "good"), (1, "startup", "crashing"), (1, "decode1", "good")]
    assert {engine for _, _, engine in figures} == {"good", "crashing"}
    reasons = record.reasons()
    assert "no such model" in reasons[("m", "int8", "broken", "startup")]
    assert "no such model" in reasons[("m", "int8", "broken", "decode1")]
    assert "signal 6" in reasons[("m", "int8", "crashing", "decode1")]
    tries = [one for one in record.measured if one.planned.cell == ("m", "int8", "crashing", "decode1")]
    assert len(tries) == 1  # what failed once is not tried again in this run


def test_spared_rounds_end_with_the_budget_and_bf16_at_one_sequence_keeps_its_five(bench: Bench) -> None:
    tight = replace(SETTINGS, budget_s=0.0)
    assert {len(values) for values in measure(bench, tight, "good").samples().values()} == {1}
    samples = measure(bench, tight, "good", format_="bf16").samples()
    assert len(samples[("m", "bf16", "good", "decode1")]) == 5
    assert len(samples[("m", "bf16", "good", "startup")]) == 1


def test_cells_without_time_give_the_reason(bench: Bench) -> None:
    record = measure(bench, replace(SETTINGS, minutes=0.0), "good")
    assert set(record.reasons().values()) == {"the run's 0 minutes were over"}


def test_a_run_continues_with_what_is_missing(bench: Bench) -> None:
    once = replace(SETTINGS, rounds=Rounds(1, 1))
    before = list(measure(bench, once, "good").measured)
    record = measure(bench, once, "good", "other")
    assert record.measured[: len(before)] == before
    assert [one.planned.engine for one in record.measured[len(before) :]] == ["other", "other"]


def test_engines_that_load_fastest_make_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    once = replace(SETTINGS, columns=("startup", "decode1"), rounds=Rounds(1, 1))
    bench._settings = once
    ended: list[str] = []
    monkeypatch.setattr(bench, "_say", lambda text: ended.append(text) if "ended" in text else None)
    monkeypatch.setattr(running, "FREE_BYTES", 1 << 60)  # no machine has this: every start makes room
    record = measure(bench, once, "good", "other")
    assert ended == [f"{name}: ended for now, to make room" for name in ("good", "other", "good")]
    assert not record.reasons() and len(record.measured) == 4
