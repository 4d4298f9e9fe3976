"""What is written from the code matches it: docs/reference.md, and README's table of families."""

from __future__ import annotations

import re

from headrace.cli import engine_flags
from headrace.models.families.registry import ARCHITECTURES
from tests.places import ROOT
from tools import families, reference

ASKED = re.compile(r"""environ(?:\.\w+\(|\[)\s*["'](\w+)["']""")


def read_by_the_package() -> set[str]:
    sources = (ROOT / "src" / "headrace").rglob("*.py")
    return {name for path in sources for name in ASKED.findall(path.read_text(encoding="utf-8"))}


def test_the_page_is_current() -> None:
    assert reference.TARGET.read_text(encoding="utf-8") == reference.page(), (
        "docs/reference.md is out of date: run `python -m tools.reference`"
    )


def test_the_page_names_every_flag() -> None:
    page = reference.page()
    for flag in ("--max-num-seqs", "--api-key-file", "--concurrency", "--goodput", "--sampling-seed"):
        option = flag.removeprefix("--").replace("-", "_")
        assert f"`{flag}" in page or f"`{option}`" in page, flag


def test_every_environment_variable_is_listed() -> None:
    read = read_by_the_package()
    assert {"HEADRACE_API_KEY", "HF_HOME"} <= read
    assert read <= set(reference.ENVIRONMENT)
    elsewhere = set(reference.ENVIRONMENT) - read
    build = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml"))
    assert all(name in build for name in elsewhere), elsewhere


def test_a_changed_help_text_makes_the_page_differ(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    first, *rest = engine_flags._FLAGS
    planted = engine_flags._Flag(first.field, first.kind, first.metavar, "planted text")
    monkeypatch.setattr(engine_flags, "_FLAGS", (planted, *rest))
    assert reference.page() != reference.TARGET.read_text(encoding="utf-8")


def test_the_table_of_families_is_current() -> None:
    readme = families.TARGET.read_text(encoding="utf-8")
    assert readme == families.page(readme), "README's table is out of date: run `python -m tools.families`"


def test_every_family_says_what_it_is() -> None:
    assert all(one.models and one.features for one in ARCHITECTURES.values())
