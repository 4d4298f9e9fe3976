from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.models.families import read_spec
from headrace.models.spec import ModelSpec
from headrace.plan.hardware import Machine
from headrace.plan.ledger import ledger
from headrace.plan.report import OP_COLUMNS, report, table
from headrace.plan.units import format_bytes
from headrace.serving.metrics import ENGINE_METRICS
from tests.tiny_checkpoint import CONFIGS

OPS = [("linear", "dense", "cpu", ""), ("paged_attention", "dense", "reference", "cpu: head_dim 7 is odd")]


@pytest.fixture
def text(make_spec: Callable[..., ModelSpec], make_machine: Callable[..., Machine]) -> str:
    spec = make_spec((None, 32))
    resolved = resolve(EngineConfig("tale"), spec, make_machine())
    return report(spec, resolved, ledger(spec, resolved), OPS)


def section(text: str, title: str) -> list[str]:
    blocks = {block.splitlines()[0]: block.splitlines()[1:] for block in text.split("\n\n")}
    assert list(blocks) == ["Model", "Memory", "Ops", "Settings"]
    return blocks[title]


def test_sections_hold_everything(
    text: str, make_spec: Callable[..., ModelSpec], make_machine: Callable[..., Machine]
) -> None:
    spec = make_spec((None, 32))
    resolved = resolve(EngineConfig("tale"), spec, make_machine())
    costs = ledger(spec, resolved)
    settings = section(text, "Settings")
    assert [line.split()[0] for line in settings] == [name for name, _, _ in resolved.explain()]
    for line, (_, _, reason) in zip(settings, resolved.explain(), strict=True):
        assert line.endswith(reason)
    memory = "\n".join(section(text, "Memory"))
    for line in (*costs.weights, *costs.kv_pools, *costs.kv_per_token, *costs.activations):
        assert line.name in memory and line.how in memory and format_bytes(line.bytes) in memory
    assert format_bytes(costs.total) in memory
    assert any("2 (1 full, 1 window-32)" in line for line in section(text, "Model"))


def test_layers_that_share_and_experts_are_named(make_machine: Callable[..., Machine]) -> None:
    spec = read_spec(CONFIGS["gemma4"])
    resolved = resolve(EngineConfig("gemma4"), spec, make_machine())
    lines = report(spec, resolved, ledger(spec, resolved), OPS).splitlines()
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith("  ")}
    assert found["layers"] == "6 (2 window-24, 1 full, 3 with the KV of others)"
    assert found["experts"] == "8, 2 a token, 48 wide"
    assert any(line.endswith("2,048 x 64 and 2,048 x 144") for line in lines)
    assert any(line.endswith("projections of 6 layers and their 8 experts") for line in lines)


def test_columns_are_aligned(text: str) -> None:
    ops = section(text, "Ops")
    for column, name in enumerate(OP_COLUMNS[:3]):
        at = ops[0].index(name)
        assert all(line[at:].startswith(row[column]) for line, row in zip(ops[1:], OPS, strict=True))
    settings = section(text, "Settings")
    values = settings[0].index("tale")
    assert all(line[values - 1] == " " and line[values] != " " for line in settings)
    assert all(line == line.rstrip() and line.startswith("  ") for line in (*ops, *settings))


def test_without_ops_there_is_no_section(
    make_spec: Callable[..., ModelSpec], make_machine: Callable[..., Machine]
) -> None:
    resolved = resolve(EngineConfig("tale"), make_spec(), make_machine())
    text = report(make_spec(), resolved, ledger(make_spec(), resolved))
    assert "\nOps\n" not in text and text.endswith("\n") and not text.endswith("\n\n")


def test_drafting_says_what_it_will_do_and_which_metrics_count_it(
    make_spec: Callable[..., ModelSpec], make_machine: Callable[..., Machine]
) -> None:
    spec = make_spec()
    config = EngineConfig("tale", speculative="ngram,history", num_speculative_tokens=3)
    resolved = resolve(config, spec, make_machine())
    text = report(spec, resolved, ledger(spec, resolved))
    drafting = text.partition("\nDrafting\n")[2].partition("\n\n")[0]
    assert "ngram, then history" in drafting and "up to 3 one after the other" in drafting
    counted = re.findall(r"headrace:(\w+)_total", drafting)
    assert len(counted) == 2 and {*counted} <= {metric.name for metric in ENGINE_METRICS}
    assert " -m tale --methods ngram,history" in drafting and "trees" not in drafting
    fixed = resolve(replace(config, adaptive_speculation=False), spec, make_machine())
    assert "always 3" in report(spec, fixed, ledger(spec, fixed))


def test_table() -> None:
    assert table([("a", "10", "x"), ("bbb", "7"), ()], right=frozenset({1})) == "  a    10  x\n  bbb   7\n"
    assert table([]) == ""
