"""What may be imported where: no torch in the server process, nothing optional in the offline path."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.source import arrivals


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("headrace.server.run, headrace.cli.server.serve", ["torch", "numpy", "llguidance"]),
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


REPORTS_MODULES = """
import json, os, sys
from headrace.cli import main

def exit(code, really=os._exit):
    with open(sys.argv[1], "w") as file:
        json.dump(sorted(sys.modules), file)
    really(code)

os._exit = exit
main(["engine-process", *sys.argv[2:]])
"""


def test_an_engine_process_imports_neither_the_offline_api_nor_http(tmp_path: Path) -> None:
    report = tmp_path / "modules.json"

    async def run() -> None:
        command = (sys.executable, "-P", "-c", REPORTS_MODULES, str(report))
        client = await ProcessClient.start({"model": "tale", "num_threads": 1}, command=command)
        stream = await client.submit(NewRequest("r", (5, 6), SamplingParams(max_tokens=2)))
        assert [outputs async for outputs in arrivals(stream)]
        await client.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))
    modules = set(json.loads(report.read_text()))
    assert "headrace.build" in modules and "headrace.serving.engine.loop" in modules
    assert modules & {"headrace.llm", "headrace.async_llm", "fastapi", "starlette", "uvicorn"} == set()
