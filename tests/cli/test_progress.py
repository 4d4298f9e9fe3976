from __future__ import annotations

import io

import pytest

from headrace.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_is_for_terminals(stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar("packing", "tensor") as bar:
        bar(3, 5)
        bar._bar.refresh()
    text = stream.getvalue()
    assert ("packing" in text and "3/5" in text) if shown else not text
