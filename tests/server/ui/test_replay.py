"""A person opens a file of a simulation on the page, and watches it in place of the live engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main
from tests.server.conftest import TinyServer
from tests.server.ui.test_engine import engine_view, lanes
from tests.server.ui.visit import Visit

Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run.jsonl"
    flags = [
        "--hardware",
        "l4",
        "--num-prompts",
        "30",
        "--rate",
        "8",
        "--replicas",
        "2",
        "--timeline",
        str(path),
    ]
    assert main(["simulate", "shape:smollm2-135m", *flags]) == 0
    return path


def seek(one: Visit, at: int) -> None:
    one.page.evaluate(
        """at => { const bar = document.getElementById("replay-at"); bar.value = String(at);
        bar.dispatchEvent(new Event("input")); }""",
        at,
    )


def test_a_simulation_is_replayed(slow: TinyServer, visit: Open, recorded: Path) -> None:
    one = visit(slow.url, calm=True)
    engine_view(one)
    page = one.page
    assert not page.is_visible("#replay")
    page.set_input_files("#replay-file", str(recorded))
    one.wait(lambda: page.is_visible("#replay"))
    assert "shape:smollm2-135m" in page.inner_text("#traffic-status")
    page.select_option("#replay-speed", value="1")
    one.wait(lambda: float(page.inner_text("#replay-time").split()[0]) > 1.0)  # it plays
    page.click("#replay-play")
    assert page.inner_text("#replay-play") == "Play"

    page.click(".as-table summary")
    seek(one, 10)
    assert page.inner_text("#replay-time") == "2.0 s"
    first = one.picture("#lanes")
    assert "of 256" in page.inner_text(".gauge >> nth=3 >> .big")  # the simulated engine's places
    one.wait(lambda: len(lanes(one)) > 0)
    assert {row[1] for row in lanes(one)} <= {"queued", "prefill", "decode", "preempted"}
    page.select_option("#replay-replica", index=1)
    assert one.picture("#lanes") != first  # the other replica's requests

    page.click("#replay-close")
    assert not page.is_visible("#replay")
    one.wait(lambda: "of 256" not in page.inner_text(".gauge >> nth=3 >> .big"))  # the live engine again


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("hello\nworld\n", "not a file of", marks=pytest.mark.long),
        pytest.param('{"headrace_timeline": 2, "interval_s": 1}\n', "not a file of", marks=pytest.mark.long),
        pytest.param(
            '{"headrace_timeline": 1, "interval_s": 1}\n', "nothing to replay", marks=pytest.mark.long
        ),
        ('{"headrace_timeline": 1, "interval_s": 1}\n' + '{"replica":0,"lanes":7}\n' * 3, "damaged"),
    ],
)
def test_other_files_are_refused(
    slow: TinyServer, visit: Open, tmp_path: Path, text: str, words: str
) -> None:
    one = visit(slow.url, calm=True)
    engine_view(one)
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    one.page.set_input_files("#replay-file", str(path))
    one.wait(lambda: words in one.page.inner_text("#traffic-status"))
    assert not one.page.is_visible("#replay")
    if words == "damaged":
        assert one.page.text_content("#replay-play") == "Play"  # it does not play on
