"""A driver runs in a process of its own, and whatever happens to it is an outcome."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.peers.drivers.driving import Job, peak_rss_bytes
from benchmarks.peers.execute import Outcome, run_driver
from benchmarks.peers.models import config_of, write_folder
from benchmarks.peers.peers import HEADRACE, Peer
from benchmarks.peers.work_items import COLUMNS, Sizes

SMALL = Sizes(prefill=32, prompt=16, outputs=8, mixed_requests=4, mixed_prompts=(4, 16), mixed_outputs=(2, 6))
FAKE = Peer(
    "fake",
    "Fake",
    "tests.benchmarks.fake_driver",
    "none",
    (),
    MappingProxyType({"bf16": "bf16"}),
    variables=MappingProxyType({"FAKE_THREADS": "{threads}"}),
)


def job(model: str, columns: tuple[str, ...]) -> Job:
    return Job(
        model, "bf16", columns, threads=1, kv_gib=1, max_seqs=8, sizes=SMALL, launched_at=0.0, report=""
    )


def drive(model: str, columns: tuple[str, ...], log: Path, limit_s: float = 60.0) -> Outcome:
    return run_driver(FAKE, Path(sys.executable), job(model, columns), log, limit_s)


def test_figures_come_back(tmp_path: Path) -> None:
    outcome = drive("good", tuple(COLUMNS), tmp_path / "log")
    assert outcome.reason is None
    assert outcome.figures["decode1"] == pytest.approx(1000.0)
    assert outcome.figures["decode8"] == pytest.approx(8000.0)
    assert 0.0 < outcome.figures["startup"] <= outcome.wall_s
    assert 1e6 < outcome.figures["memory"] < 1e9


def test_a_driver_that_raises_says_why(tmp_path: Path) -> None:
    outcome = drive("broken", ("decode1",), tmp_path / "log")
    assert outcome.figures == {}
    assert outcome.reason is not None and "no such model" in outcome.reason


def test_what_was_measured_before_a_crash_counts(tmp_path: Path) -> None:
    outcome = drive("crashing", ("startup", "decode1"), tmp_path / "log")
    assert set(outcome.figures) == {"startup"}
    assert outcome.reason is not None and "signal 6" in outcome.reason


def test_a_driver_that_hangs_is_ended(tmp_path: Path) -> None:
    outcome = drive("hanging", ("decode1",), tmp_path / "log", limit_s=1.0)
    assert outcome.reason == "took longer than 1 s"
    assert outcome.wall_s < 30


def test_a_job_survives_json() -> None:
    before = replace(job("m", ("prefill", "mixed")), report="r")
    assert Job.from_json(before.to_json()) == before


def test_peak_memory_is_this_process_own() -> None:
    assert 1e6 < peak_rss_bytes() < 1e12


def test_headrace_does_the_work(tmp_path: Path) -> None:
    config = {**config_of("tiny"), "vocab_size": 32_000}
    write_folder(tmp_path / "model", config)
    columns = ("startup", "memory", "prefill", "decode8", "mixed")
    outcome = run_driver(
        HEADRACE, Path(sys.executable), job(str(tmp_path / "model"), columns), tmp_path / "log", 150.0
    )
    assert outcome.reason is None, (tmp_path / "log").read_text()
    assert set(outcome.figures) == set(columns)
    assert all(value > 0 for value in outcome.figures.values())
