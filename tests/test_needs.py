"""A missing need skips a test with its reason, and fails it where HEADRACE_REQUIRE names the need."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from headrace.ops.cpu_features import detect
from tests import needs
from tests.needs import NEEDS
from tests.places import ROOT

ZEN4 = frozenset(
    {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"}
)


def test_a_missing_need_skips_unless_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUIRE", "native")
    with pytest.raises(pytest.skip.Exception, match=r"no Chromium here \[browser\]"):
        needs.lacking("browser", "no Chromium here")
    monkeypatch.setenv("HEADRACE_REQUIRE", "native,browser")
    with pytest.raises(
        pytest.fail.Exception, match="no Chromium here; HEADRACE_REQUIRE names browser: Chromium"
    ):
        needs.lacking("browser", "no Chromium here")
    with pytest.raises(pytest.skip.Exception, match=r"headrace\.no_such cannot be imported"):
        needs.package("headrace.no_such")


def test_an_unknown_need_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUIRE", "native, chrome")
    with pytest.raises(pytest.UsageError, match="names chrome; it may name native, isa, "):
        needs.required()


def test_a_set_that_the_build_leaves_out_is_found() -> None:
    cpu = replace(detect(), flags=ZEN4, kernels=("avx512_vnni", "avx2", "portable", "amx-emulated"))
    assert needs.unbuilt_sets(cpu) == ["avx512"]
    assert needs.unbuilt_sets(replace(cpu, kernels=("avx512", *cpu.kernels))) == []
    assert needs.unbuilt_sets(replace(cpu, flags=frozenset({"avx2"}), kernels=("portable",))) == []


def test_the_build_has_every_set_of_this_cpu() -> None:
    if unbuilt := needs.unbuilt_sets(detect()):
        needs.lacking("isa", f"built without {', '.join(unbuilt)}, which this CPU can run")


def test_every_need_is_required_somewhere() -> None:
    """In CI, or by `make test-long`."""
    places = (ROOT / ".ci" / "run").read_text() + (ROOT / "Makefile").read_text()
    required = re.findall(r"(?:require\+?=|HEADRACE_REQUIRE \?= )([a-z,]+)", places)
    assert {name for names in required for name in names.split(",") if name} == set(NEEDS)


def test_a_lazy_package_is_not_imported_by_looking_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    lazy = needs.lazily("colorsys")
    assert not hasattr(lazy, "__wrapped__") and not hasattr(lazy, "_mock_name")
    assert "colorsys" not in sys.modules
    assert lazy.rgb_to_hsv(0.0, 0.0, 0.0) == (0.0, 0.0, 0.0)
