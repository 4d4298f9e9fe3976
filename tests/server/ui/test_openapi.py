"""/openapi.json tells the truth, as schemathesis finds out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy

import pytest
from fastapi import FastAPI

from headrace.core.types import MAX_PRIORITY
from headrace.server.access.key_file import PRIORITIES
from headrace.server.ui.openapi import ANSWERS, operations
from tests import needs
from tests.places import ROOT
from tests.server.conftest import TinyServer

CONFIG = ROOT / "tests" / "clients" / "schemathesis.toml"
PROGRAM = "from schemathesis.cli import schemathesis; schemathesis()"


@pytest.fixture(scope="module")
def quick() -> Iterator[TinyServer]:
    """An engine that takes no time."""
    server = TinyServer(step_s=0.0)
    yield server
    server.close()


def schemathesis(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    needs.package("schemathesis")
    words = ["--config-file", str(CONFIG), "run", f"{url}/openapi.json", "--no-color", *options]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=170, check=False
    )


def shortened(report: str) -> str:
    """Bodies at the limits of the document make very long lines."""
    return "\n".join(line[:400] for line in report.splitlines()[-120:])


def test_schemathesis_finds_nothing(quick: TinyServer) -> None:
    done = schemathesis(quick.url, "--exclude-path", "/live")  # an endless stream
    assert done.returncode == 0, shortened(done.stdout)
    generated = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert generated is not None and int(generated[1]) > 400, shortened(done.stdout)
    assert quick.idle


@pytest.mark.parametrize("lie", ["answer", "bound"])
def test_schemathesis_finds_a_lie(quick: TinyServer, lie: str) -> None:
    document = quick.app.openapi()
    told = deepcopy(document)
    schemas = document["components"]["schemas"]
    if lie == "answer":
        path, schemas["VersionAnswer"]["properties"]["version"] = "/version", {"type": "integer"}
    else:
        path = "/detokenize"
        schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]["maximum"] = 5
    try:
        done = schemathesis(quick.url, "--include-path", path)
    finally:
        quick.app.openapi_schema = told
    assert done.returncode == 1, shortened(done.stdout)
    assert "Failures" in done.stdout


def undescribed(app: FastAPI) -> list[str]:
    """Routes of the document whose answers are not told."""
    return [
        f"{method} {path}" for method, path, _ in operations(app.openapi()) if (method, path) not in ANSWERS
    ]


def test_every_route_tells_its_answers_and_errors(quick: TinyServer) -> None:
    document = quick.app.openapi()
    assert undescribed(quick.app) == []
    for method, path, operation in operations(document):
        assert operation["responses"]["200"]["content"], path
        assert "ErrorAnswer" in str(operation["responses"]["500"]), path
        assert "422" not in operation["responses"], path
        if method == "post":
            assert "#/components/schemas/" in str(operation["requestBody"]), path
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_a_route_that_tells_nothing_is_noticed() -> None:
    app = FastAPI()
    app.add_api_route("/planted", lambda: {}, methods=["GET"])
    assert undescribed(app) == ["get /planted"]


def test_the_models_own_limits(quick: TinyServer) -> None:
    schemas = quick.app.openapi()["components"]["schemas"]
    assert "'maximum': 2047" in str(schemas["CompletionRequest"]["properties"]["prompt"])
    assert "'maximum': 512" in str(schemas["CompletionRequest"]["properties"]["max_tokens"])
    assert "['tiny', 'alias', '']" in str(schemas["ChatRequest"]["properties"]["model"])
    assert "token-id" not in str(schemas)


def test_the_names_of_priorities_are_those_of_the_document(quick: TinyServer) -> None:
    told = quick.app.openapi()["components"]["schemas"]["EmbeddingRequest"]["properties"]["priority"]
    names = next(part["enum"] for part in told["anyOf"] if "enum" in part)
    assert names == list(PRIORITIES)
    assert {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY, "type": "integer"} in told["anyOf"]
