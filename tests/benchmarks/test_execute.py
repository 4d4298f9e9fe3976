"""A driver runs in a process of its own, and each of its failures is a reason."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.peers.drivers.driving import ONCE, Job, peak_rss_bytes
from benchmarks.peers.execute import Driver, DriverError
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


def job(model: str) -> Job:
    return Job(model, "bf16", threads=1, kv_gib=1, max_seqs=8, sizes=SMALL, launched_at=0.0, replies=-1)


@contextmanager
def driving(model: str, log: Path, peer: Peer = FAKE) -> Iterator[Driver]:
    driver = Driver(peer, Path(sys.executable), job(model), log)
    try:
        yield driver
    finally:
        driver.close()
        assert not driver.alive


def state_of(driver: Driver) -> str:
    """The state of the driver's process as the kernel names it: T is stopped."""
    return Path(f"/proc/{driver.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_figures_are_measured_in_any_order_and_number(tmp_path: Path) -> None:
    with driving("good", tmp_path / "log") as driver:
        begin = time.time()
        start = driver.measure("startup", 60.0)
        assert 0.0 < start["figure"] <= time.time() - begin + 5.0
        assert driver.facts == {"kv": "none"}
        assert 1e6 < driver.measure("memory", 60.0)["figure"] < 1e9
        for column, rate in (("decode8", 8000.0), ("decode1", 1000.0), ("decode8", 8000.0)):
            assert driver.measure(column, 60.0)["figure"] == pytest.approx(rate)


def test_a_driver_is_stopped_between_its_figures(tmp_path: Path) -> None:
    with driving("good", tmp_path / "log") as driver:
        driver.measure("startup", 60.0)
        until = time.monotonic() + 30.0
        while state_of(driver) != "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert state_of(driver) == "T"
        assert driver.measure("decode1", 60.0)["figure"] == pytest.approx(1000.0)


def test_a_driver_that_raises_reports_the_reason(tmp_path: Path) -> None:
    with driving("broken", tmp_path / "log") as driver, pytest.raises(DriverError, match="no such model"):
        driver.measure("decode1", 60.0)
    assert driver.facts == {}


def test_figures_before_a_crash_count(tmp_path: Path) -> None:
    with driving("crashing", tmp_path / "log") as driver:
        assert driver.measure("startup", 60.0)["figure"] > 0
        with pytest.raises(DriverError, match="signal 6"):
            driver.measure("decode1", 60.0)
        assert not driver.alive


def test_a_driver_that_hangs_is_ended(tmp_path: Path) -> None:
    with driving("hanging", tmp_path / "log") as driver:
        with pytest.raises(DriverError, match="took longer than 1 s"):
            driver.measure("decode1", 1.0)
        assert not driver.alive


def test_a_job_survives_json() -> None:
    before = replace(job("m"), replies=7)
    assert Job.from_json(before.to_json()) == before


def test_peak_memory_is_this_process_own() -> None:
    assert 1e6 < peak_rss_bytes() < 1e12


def test_headrace_does_the_work_and_names_its_configuration(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", {**config_of("tiny"), "vocab_size": 32_000})
    with driving(str(tmp_path / "model"), tmp_path / "log", HEADRACE) as driver:
        for column in (*ONCE, *(name for name in COLUMNS if name not in ONCE)):
            assert driver.measure(column, 150.0)["figure"] > 0, column
        assert driver.facts["kv"] == "bfloat16"
        assert driver.facts["layer_bytes"] > 0
