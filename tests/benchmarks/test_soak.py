"""The soak's own eyes: it finds the slope of a leak, a leaked block, and an answer that changes."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.soak import KINDS, Sample, slope_bytes_per_minute, soak
from headrace.bench.serving.serve import run
from headrace.config import EngineConfig
from headrace.serving.client.child import ENGINE_COMMAND
from tests.server.conftest import TALE, TinyServer

LEAKY = (sys.executable, str(Path(__file__).parents[1] / "server" / "leaky_engine.py"))
LIMIT = 1e6  # bytes a minute


def samples(size: Callable[[float], float], minutes: float = 30) -> list[Sample]:
    noise = random.Random(0)
    times = [5.0 * number for number in range(int(minutes * 12))]
    return [Sample(at, {"server": round(size(at / 60) + noise.gauss(0, 3e5))}) for at in times]


def test_flat_memory_has_no_slope() -> None:
    assert abs(slope_bytes_per_minute(samples(lambda minute: 80e6), "server", 360)) < LIMIT / 20


def test_a_leak_is_found() -> None:
    found = slope_bytes_per_minute(samples(lambda minute: 80e6 + 1.2e6 * minute), "server", 360)
    assert found == pytest.approx(1.2e6, rel=0.05) and found > LIMIT


def test_the_warm_up_does_not_count() -> None:
    assert (
        abs(slope_bytes_per_minute(samples(lambda minute: 80e6 * min(1, minute / 5)), "server", 360))
        < LIMIT / 20
    )


def churned(command: tuple[str, ...]) -> dict[str, Any]:
    engine = EngineConfig.from_kwargs(model=str(TALE), num_threads=1, kv_cache_memory=8 * 2**20)
    tiny = TinyServer(command=command, engine=engine)
    try:
        served = SimpleNamespace(url=tiny.url, pids={"server": os.getpid(), "engine": tiny.client.pid})
        args = argparse.Namespace(minutes=0.06, clients=8, seed=1, sample_s=0.5, warmup=0.2)
        return run(soak(args, served))  # type: ignore[arg-type]
    finally:
        tiny.close()


@pytest.mark.long
def test_churn_leaks_nothing() -> None:
    result = churned(ENGINE_COMMAND)
    assert result["wrong"] == []
    seen = {name.split()[0] for name in result["requests"]}
    assert seen == set(KINDS) and result["requests"]["leaves left"] > 0
    assert len(result["samples"]) >= 5


@pytest.mark.long
def test_a_leaked_block_is_noticed() -> None:
    assert any("kv_cache_usage_perc" in line for line in churned(LEAKY)["wrong"])
