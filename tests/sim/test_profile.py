"""Profiles survive JSON, curves and levels interpolate, and what is damaged is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.plan.hardware_table import HARDWARE
from headrace.sim.profile import (
    AttentionCost,
    Curve,
    Levels,
    Link,
    ProductCost,
    Profile,
    SampleCost,
    ServerCost,
    StepCost,
)
from headrace.sim.profile_store import (
    check_store,
    profile_key,
    profile_path,
    read_profile,
    store_profile,
    this_profile,
)

FULL = Profile(
    "made", "measured", ((1e6, 9e10), (1e9, 3e10)), {"bf16": 4e11},
    products={
        "int4": ProductCost(
            Levels((1e6, 1e8), (Curve((1.0, 8.0), (1e-11, 3e-11)), Curve((1.0,), (2e-11,)))),
            Levels((1e6,), (Curve((1.0,), (1e-9,)),)), Curve((1.0,), (2e-9,)), 128, "i8", 4.5,
        )
    },
    attention={
        "int8": AttentionCost(Levels((1e6,), (Curve((4.0,), (1e-10,)),)), Curve((1.0,), (1e-9,)), 1e-7, 1e-9),
        "bf16": AttentionCost(Levels((1e6,), (Curve((4.0,), (1e-10,)),))),
    },
    rowwise={"norm": Curve((512.0,), (1e-6,))}, call_s=1e-6, step=StepCost(1e-4, 1e-5, 1e-8),
    samples={"greedy": SampleCost(1e-5, 1e-6, 1e-9)}, server=ServerCost(1e-3, 1e-3, 1e-5),
    link=Link(1e9, 1e-5), error={"products": 0.03}, key="here", busy=0.5,
)  # fmt: skip


def test_curves_are_straight_between_points_and_proportional_after_them() -> None:
    curve = Curve((1.0, 4.0, 8.0), (3.0, 6.0, 6.0))
    assert [curve(at) for at in (0.5, 1, 2, 4, 6, 8, 16)] == [3, 3, 4, 6, 6, 6, 12]


def test_levels_lie_between_sizes_in_proportion_to_their_logarithm() -> None:
    levels = Levels((1e6, 1e8), (Curve((1.0,), (1.0,)), Curve((1.0,), (3.0,))))
    assert [levels(size, 1) for size in (1e3, 1e6, 1e7, 1e8, 1e9)] == pytest.approx([1, 1, 2, 3, 3])
    assert FULL.bandwidth(10**7.5) == pytest.approx(6e10)
    assert FULL.bandwidth(1) == 9e10 and FULL.bandwidth() == FULL.bandwidth(1e12) == 3e10


def test_json_brings_back_the_same_profile() -> None:
    assert Profile.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"memory": [["x", 1]]},
        {"call_s": None},
        {"step": {"step_s": 1, "more": 2}},
        {"rowwise": {"norm": {"at": [2.0, 1.0], "values": [1.0, 1.0]}}},
        {"rowwise": {"norm": {"at": [1.0], "values": [float("nan")]}}},
        {"products": {"int4": {"elements": {"bytes": [], "curves": []}, "outputs": None}}},
        {"attention": {"int8": {"elements": {"bytes": [1.0], "curves": []}}}},
        {"source": "hearsay"},
        {"memory": []},
        {"memory": [[1e9, 0]]},
        {"memory": [[1e9, float("nan")]]},
        {"memory": [[-1.0, 1e9], [1e9, 1e9]]},
        {"memory": [[1e9, 10**400]]},
        {"peaks": {"bf16": 0}},
        {"reach": {"memory": "most"}},
        {"reach": {"memory": 0}},
        {"call_s": float("inf")},
        {"step": {"step_s": "short"}},
        {"step": {"step_s": -1.0}},
        {"samples": {"greedy": {"call_s": float("nan")}}},
        {"server": {"request_s": -5}},
        {"name": {}},
        {"memory": [[float("inf"), 1e9]]},
        {"step": {"step_s": 1e300}},
        {"products": {"int4": {**FULL.to_json()["products"]["int4"], "span": "x"}}},
        {"products": {"int4": {**FULL.to_json()["products"]["int4"], "span": 0}}},
        {"attention": {"int8": {**FULL.to_json()["attention"]["int8"], "tile": -1}}},
        {"attention": {"int8": {**FULL.to_json()["attention"]["int8"], "panel": True}}},
    ],
)
def test_damaged_profiles_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        Profile.from_json({**FULL.to_json(), **change})
    assert str(raised.value).count("\n") == 0
    with pytest.raises(ConfigError):
        Profile.from_json([])  # type: ignore[arg-type]


def test_a_data_sheet_is_a_profile() -> None:
    for hardware in HARDWARE:
        profile = Profile.of_hardware(hardware)
        assert profile.source == "data sheet" and profile.bandwidth() == hardware.bandwidth
        assert all(profile.peak(name) == rate for name, rate in hardware.peak)
        assert (profile.link is None) == (hardware.link == 0)
        assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_types_that_a_machine_lacks_are_multiplied_wider() -> None:
    t4 = Profile.of_hardware(next(one for one in HARDWARE if one.name == "t4"))
    assert t4.peak("bf16") == t4.peak("f16") == 65e12
    with pytest.raises(ConfigError, match="no peak"):
        replace(FULL, peaks={}).peak("bf16")


def test_stored_profiles_are_found_by_machine_kernels_and_threads(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profile.json"
    assert this_profile("portable", 3, path=path) is None
    mine = replace(FULL, key=profile_key("portable", 3))
    store_profile(mine, path=path)
    store_profile(replace(FULL, name="other", key=profile_key("portable", 4)), path=path)
    assert this_profile("portable", 4, path=path) == replace(
        FULL, name="other", key=profile_key("portable", 4)
    )
    store_profile(replace(mine, name="newer"), path=path)
    if this_profile("portable", 3, path=path) is not None:  # None without native kernels
        assert this_profile("portable", 3, path=path) == replace(mine, name="newer")
    for damaged in ("{", "[" * 100_000):
        path.write_text(damaged, encoding="utf-8")
        assert this_profile("portable", 3, path=path) is None


def test_the_file_lies_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profile_path() == tmp_path / "headrace" / "profile.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user")
    assert profile_path() == Path("~no-such-user/headrace/profile.json")


def test_a_folder_that_takes_no_file_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "profile.json").mkdir(parents=True)
    for path in (tmp_path / "file" / "profile.json", tmp_path / "taken" / "profile.json"):
        with pytest.raises(ConfigError, match="cannot be stored"):
            check_store(path=path)
        with pytest.raises(ConfigError, match="cannot be stored"):
            store_profile(FULL, path=path)
    assert list((tmp_path / "taken").iterdir()) == [tmp_path / "taken" / "profile.json"]
    check_store(path=tmp_path / "new" / "profile.json")
    assert list((tmp_path / "new").iterdir()) == []


def test_files_that_are_no_profiles(tmp_path: Path) -> None:
    for name, text in (("a", None), ("b", "["), ("c", "[]"), ("d", "{}"), ("f", "[" * 100_000)):
        path = tmp_path / name
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError):
            read_profile(path)
    whole = tmp_path / "e"
    whole.write_text(json.dumps(FULL.to_json()), encoding="utf-8")
    assert read_profile(whole) == FULL
