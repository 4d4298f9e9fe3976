"""Folders beside weights that are rounded at load: both sides take turns, on codes that are the same."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.quantization import loaded


def test_sides_take_turns_and_the_first_one_changes() -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return len(called)

    found = loaded.in_turn([partial(side, "a"), partial(side, "b")], 3)
    assert "".join(called) == "baabbaab"
    assert found == [[3, 6, 7], [4, 5, 8]]


@pytest.mark.long
def test_every_load_is_measured_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--models tale --bits 4 --turns 1 --prompt 40 --output 4 --threads 1"
    assert loaded.main(words.split()) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| tale")]
    assert [row[2] for row in rows] == ["a8"] * 3 + ["a16"] * 3
    assert all(float(row[-1].strip(" |")) > 0 for row in rows)


def test_an_unknown_shape_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded.main(["--models", "tale", "shape:nothing"]) == 1
    assert "nothing" in capsys.readouterr().err
