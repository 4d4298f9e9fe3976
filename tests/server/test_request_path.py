"""docs/architecture.md names the files of a chat request in order: they exist, are few, and run in that order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import headrace
from tests.places import ROOT
from tests.server.conftest import TinyServer

SOURCE = Path(headrace.__file__).parent
MOST_FILES = 8
MOST_RUN = 50
"""Files of which any function runs between the socket and the engine's: also middleware, values and helpers."""

MIDDLEWARE = re.findall(
    r"`((?:http|access|observability)/\w+\.py)`",
    (ROOT / "docs" / "architecture.md")
    .read_text(encoding="utf-8")
    .split("Between 1 and 2")[1]
    .split("Between 6")[0],
)


def steps(kind: str) -> list[tuple[str, list[str]]]:
    """(file, functions) of each numbered line below the heading of a path."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = text.split(f"**{kind}**")[1].split("\n\n")[1]
    lines = re.findall(r"^\d+\. `([\w/.]+)`: (.*?)(?=^\d+\.|\Z)", listed, re.MULTILINE | re.DOTALL)
    return [(file, re.findall(r"`([A-Za-z_]+(?:(?:\.|::)\w+)?)`", said)) for file, said in lines]


def test_the_named_files_have_the_named_functions() -> None:
    for kind in ("A chat request", "A token", "A weight"):
        path = steps(kind)
        assert 5 <= len(path) <= MOST_FILES
        for file, names in path:
            text = (ROOT / file if file.startswith("csrc/") else SOURCE / file).read_text(encoding="utf-8")
            function = re.split(r"\.|::", names[0])[-1]
            assert re.search(rf"(def|class) {function}\b|::{function}\(", text), (file, names)


def test_a_chat_request_runs_through_them_in_order(tiny: TinyServer) -> None:
    """All but the last, which runs in the engine process."""
    called: dict[tuple[str, str], None] = {}  # in the order of the first call

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE):
            called.setdefault((file.relative_to(SOURCE).as_posix(), frame.f_code.co_name))

    async def profile(on: bool) -> None:
        sys.setprofile(note if on else None)

    tiny.call(profile(True))
    try:
        body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3}
        assert tiny.http.post("/v1/chat/completions", json=body).status_code == 200
    finally:
        tiny.call(profile(False))
    path = steps("A chat request")
    order = list(called)
    last = order.index((path[-2][0], path[-2][1][0].rpartition(".")[2]))
    run = {file for file, _ in order[: last + 1]}
    assert {file for file, _ in path[:-1]} <= run
    assert {f"server/{file}" for file in MIDDLEWARE} <= run
    assert len(run) <= MOST_RUN, sorted(run)
    at = [order.index((file, names[0].rpartition(".")[2])) for file, names in path[1:-1]]
    assert at == sorted(at)
    assert path[0][0] in {file for file, _ in order[: at[0]]}
