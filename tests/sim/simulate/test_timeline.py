"""The file of a simulation that the web page replays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.sim.simulate import timeline
from headrace.sim.simulate.replica import Replica
from headrace.sim.simulate.timeline import Timeline
from tests.sim.simulate.harness import asks, simulation


def test_a_full_file_ends_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may be years apart, as those of a trace."""
    monkeypatch.setattr(timeline, "MAX_BYTES", 20_000)
    ticks = []

    class Counting(Timeline):
        def tick(self, now: float, replicas: list[Replica]) -> None:
            ticks.append(now)
            assert len(ticks) < 1000
            super().tick(now, replicas)

    path = tmp_path / "run.jsonl"
    with Counting(path, 1e-3, "a model") as observer:
        assert simulation(asks(3, rate=1e-2), observer=observer).run().answered == 3
    lines = path.read_text().splitlines()
    assert "truncated" in json.loads(lines[-1]) and path.stat().st_size < 30_000
