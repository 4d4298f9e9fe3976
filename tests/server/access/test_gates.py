"""No route bypasses the gate, which separates callers and counts their use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.server

FOLDER = Path(headrace.server.__file__).parent

GATE = "gate.py"
OBSERVABILITY = "observability"
"""Hands the client on, to ask it for numbers; nothing in there makes requests."""

OWN = {"self", "request"}
"""Whose `client` is another thing: of a module's own, or the address of who sent a request."""

WATCHERS = {"state", "trouble", "stats", "view"}
"""What may be asked of the engine's client besides: none of it submits anything."""


def detours(source: str) -> Iterator[str]:
    """Uses of an engine's client that could hand over a request: any attribute but the watchers', or itself."""
    tree = ast.parse(source)
    inner = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in WATCHERS
    }
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else None
        if name == "client" and id(node) not in inner and _is_service(node):
            yield f"line {node.lineno}: a service's client is used for more than watching"
        if name == "submit" and not _is_gate(node):
            yield f"line {node.lineno}: something is submitted beside the gate"


def _is_service(node: ast.AST) -> bool:
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OWN
    return isinstance(node, ast.Attribute) and not own


def _is_gate(node: ast.AST) -> bool:
    assert isinstance(node, ast.Attribute)
    return isinstance(node.value, ast.Attribute) and node.value.attr == "gate"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_every_request_passes_the_gate(path: Path) -> None:
    if path.name in (GATE, "service.py"):
        return
    found = detours(path.read_text())
    if path.parent.name == OBSERVABILITY:
        found = (one for one in found if "submitted" in one)
        assert "Generation.start" not in path.read_text()
    assert list(found) == []


@pytest.mark.parametrize(
    "source",
    [
        "await service.client.submit(new)", "Generation.start(service.client, tokenizer, new)",
        "client = service.client", "await engine.submit(new)", "submit = service.client.submit",
        "getattr(service.client, 'submit')(new)",
    ],
)  # fmt: skip
def test_planted_bypasses_are_found(source: str) -> None:
    assert list(detours(f"async def route(service):\n    {source}\n"))


@pytest.mark.parametrize("source", ["await service.gate.submit(new)", "state = service.client.state"])
def test_code_that_uses_the_gate_passes(source: str) -> None:
    assert not list(detours(f"async def route(service):\n    {source}\n"))
