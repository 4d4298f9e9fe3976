"""The documents about metrics match /metrics: the table, the dashboard, the examples for Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headrace.server.observability.metrics import METRICS
from tests.places import ROOT
from tests.server.conftest import TinyServer
from tools import grafana

DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
SERVING = ROOT / "docs" / "serving.md"
EXAMPLES = [ROOT / "docs" / name for name in ("prometheus.yml", "prometheus-rules.yml")]

_NAME = re.compile(r"\b(?:headrace:|process_)[a-z0-9_]+")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def shown(tiny: TinyServer) -> dict[str, str]:
    """Kind by name of everything in a scrape after some work."""
    tiny.http.post("/v1/completions", json={"prompt": [1] * 20, "max_tokens": 3})
    families = text_string_to_metric_families(tiny.http.get("/metrics").text)
    return {_exposed(family.name, family.type): family.type for family in families}


def _exposed(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" and not name.endswith("_total") else name


def named(expressions: Iterable[str], shown: dict[str, str]) -> set[str]:
    """The metrics that expressions are about; of histograms without _bucket, _sum and _count."""
    names = {name for expression in expressions for name in _NAME.findall(expression)}
    return {name if name in shown else _SUFFIX.sub("", name) for name in names}


def unknown(expressions: Iterable[str], shown: dict[str, str]) -> set[str]:
    return named(expressions, shown) - set(shown)


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def test_the_table_is_the_registry(shown: dict[str, str]) -> None:
    rows = re.findall(
        r"^\| `(headrace:\S+)` \| (\w+) \| (.*?) \| (.*) \|$", SERVING.read_text(), re.MULTILINE
    )
    assert rows == [
        (one.exposed, one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help) for one in METRICS
    ]
    ours = {name: kind for name, kind in shown.items() if name.startswith("headrace:")}
    assert ours == {one.exposed: one.kind for one in METRICS}


def test_names_are_not_given_twice() -> None:
    assert len({one.exposed for one in METRICS}) == len(METRICS)


def test_the_dashboard_shows_exactly_the_metrics(shown: dict[str, str]) -> None:
    assert not unknown(expressions(), shown)
    assert named(expressions(), shown) >= {one.exposed for one in METRICS}


def test_a_planted_name_is_noticed(shown: dict[str, str]) -> None:
    planted = ["sum(rate(headrace:no_such_thing_total[1m]))", "headrace:prompt_tokens", "process_none"]
    assert unknown(planted, shown) == {
        "headrace:no_such_thing_total",
        "headrace:prompt_tokens",
        "process_none",
    }


def test_labels_in_queries_exist() -> None:
    labels = {
        one.exposed: {"model_name", *one.labels, *(["le"] if one.kind == "histogram" else [])}
        for one in METRICS
    }
    for expression in expressions():
        for by, name in re.findall(r"by \(([\w, ]+)\) \((?:rate\()?(headrace:\w+)", expression):
            known = labels.get(name) or labels[_SUFFIX.sub("", name)]
            assert set(by.split(", ")) <= known, expression
    legends = [(target["legendFormat"], target["expr"]) for panel in dashboard()["panels"]
               for target in panel.get("targets", ())]  # fmt: skip
    for legend, expression in legends:
        for label in re.findall(r"{{(\w+)}}", legend):
            assert label in expression, legend


def test_the_dashboard_is_what_the_tool_writes() -> None:
    assert DASHBOARD.read_text() == grafana.text()


def test_panels_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_for_prometheus(path: Path, shown: dict[str, str]) -> None:
    content = yaml.safe_load(path.read_text())
    if path.name == "prometheus.yml":
        (job,) = content["scrape_configs"]
        assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]
        assert job.get("metrics_path", "/metrics") == "/metrics"
        assert content["rule_files"] == [EXAMPLES[1].name]
    else:
        rules = [rule["expr"] for group in content["groups"] for rule in group["rules"]]
        assert len(rules) > 4 and not unknown(rules, shown)
