"""What may be imported where: no torch in the server process, nothing optional in the offline path."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("headrace.server.run, headrace.cli.serve", ["torch", "numpy", "llguidance"]),
        (
            "headrace.serving.client.inprocess, headrace.serving.requests.output_processor, "
            "headrace.serving.requests.outputs",
            ["torch", "msgspec", "fastapi", "uvicorn", "asyncio"],
        ),
    ],
)
def test_imports(modules: str, absent: list[str]) -> None:
    program = f"import sys, {modules}; print(sorted(set({absent!r}) & set(sys.modules)))"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"
