"""The public surface, name by name, and the tree of errors as errors.py draws it."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest

import headrace
from headrace import errors
from tests.places import ROOT

PUBLIC = {
    "Grammar": "headrace.core.grammar",
    "AsyncLLM": "headrace.async_llm",
    "LLM": "headrace.llm",
    "CompletionOutput": "headrace.serving.requests.outputs",
    "EmbeddingRequestOutput": "headrace.serving.requests.outputs",
    "EngineStats": "headrace.core.engine",
    "MetricSample": "headrace.serving.metrics",
    "RequestMetrics": "headrace.serving.requests.outputs",
    "RequestOutput": "headrace.serving.requests.outputs",
    "RequestOutputKind": "headrace.core.params",
    "SamplingParams": "headrace.core.params",
    **dict.fromkeys(
        [
            "CheckpointError",
            "ConfigError",
            "DeadlineExceeded",
            "DoesNotFit",
            "EngineDead",
            "HeadraceError",
            "InvalidParams",
            "MissingDependency",
            "ModelError",
            "ModelNotFound",
            "NotPermitted",
            "Overloaded",
            "PreviousResponseNotFound",
            "PromptTooLong",
            "RateLimited",
            "RequestError",
            "ResponseNotFound",
            "TokenizerError",
            "UnknownModelName",
            "UnsupportedModel",
        ],
        "headrace.errors",
    ),
}


def test_exactly_these_names_are_public():
    assert set(headrace.__all__) == {*PUBLIC, "__version__"}
    assert len(headrace.__all__) == len(set(headrace.__all__))
    assert dir(headrace) == sorted(headrace.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_is_there_and_documented(name: str):
    value = getattr(headrace, name)
    assert value.__name__ == name
    assert PUBLIC[name] == value.__module__
    if PUBLIC[name] != "headrace.errors":
        assert value.__doc__


def test_other_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        _ = headrace.Engine
    with pytest.raises(ImportError, match="cannot import name 'Engine'"):
        from headrace import Engine  # noqa: F401


def test_the_documents_list_the_public_names():
    others = {name for name, home in PUBLIC.items() if home != "headrace.errors"}
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)`", text.split("is public:")[1].split("and the errors")[0])) == others
    tree = re.search(
        r"__init__\.py +the public names: (.*)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert tree is not None
    named = set(tree[1].split(", ")) - {"results", "errors"}
    assert {"LLM", "AsyncLLM", "SamplingParams", "Grammar"} <= named <= others


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert headrace.__version__ == project["version"]
    assert f"## [{headrace.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def drawn_tree() -> dict[str, tuple[str | None, int]]:
    """Name -> (parent, status), read from the drawing in the docstring of errors.py."""
    tree: dict[str, tuple[str | None, int]] = {}
    path: list[str] = []
    drawing = inspect.getdoc(errors) or ""
    for branch, name, status in re.findall(r"^([ |`-]*)(\w+) {2,}(\d{3})\b", drawing, re.M):
        depth = len(branch) // 3
        path[depth:] = [name]
        tree[name] = (path[depth - 1] if depth else None, int(status))
    return tree


def test_errors_match_the_drawn_tree():
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.HeadraceError)
    }
    real = {
        name: (None if cls is errors.HeadraceError else cls.__base__.__name__, cls.status)
        for name, cls in classes.items()
    }
    assert real == drawn_tree()
    assert set(real) == {name for name, home in PUBLIC.items() if home == "headrace.errors"}
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", cls.code) for cls in classes.values())
