"""Kernels that were built from other C++ sources than the checkout has are noticed before they are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.bench.native.roofline import native_module
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.ops import native_sources
from headrace.ops.cpu_features import detect
from headrace.ops.native_sources import CSRC, SOURCES_SHA256, sources_digest
from tests import needs


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if something in csrc/ had changed since the build."""
    monkeypatch.setattr(native_sources, "SOURCES_SHA256", "0" * 64)
    for cached in (native_sources.built_from_other_sources, detect):
        cached.cache_clear()
    yield
    for cached in (native_sources.built_from_other_sources, detect):
        cached.cache_clear()


def test_the_kernels_here_are_built_from_the_sources_here() -> None:
    """CMake and Python compute the same digest. Where this fails after a change in csrc/: make native."""
    needs.native()
    assert sources_digest(CSRC) == SOURCES_SHA256


def test_names_and_contents_count_but_not_the_driver_of_the_sanitizers(tmp_path: Path) -> None:
    (tmp_path / "isa").mkdir()
    (tmp_path / "driver").mkdir()
    (tmp_path / "team.cpp").write_text("int a;")
    (tmp_path / "isa" / "gemm.h").write_text("int b;")
    digests = [sources_digest(tmp_path)]
    for same in ("driver/main.cpp", ".#team.cpp", "team.cpp~", "README.md"):
        (tmp_path / same).write_text("int c;")
        assert sources_digest(tmp_path) == digests[0]
    (tmp_path / "isa" / "gemm.h").write_text("int  b;")
    digests.append(sources_digest(tmp_path))
    (tmp_path / "isa" / "gemm.h").rename(tmp_path / "isa" / "tile.h")
    digests.append(sources_digest(tmp_path))
    assert len(set(digests)) == 3


def test_other_sources_are_named_in_one_line(others: None, capsys: pytest.CaptureFixture[str]) -> None:
    needs.native()
    assert main(["generate", "Once", "--max-tokens", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "built from other sources" in said.err and "make native" in said.err
    assert "make native" in detect().describe()
    with pytest.raises(ConfigError, match="built from other sources"):
        native_module()


def test_an_installation_without_sources_has_nothing_to_compare(
    others: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native_sources, "CSRC", tmp_path / "csrc")
    native_sources.check_sources()
