"""/openapi.json matches the server, checked by schemathesis."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from fastapi import FastAPI

from headrace.core.types import MAX_PRIORITY
from headrace.server.access.key_file import PRIORITIES
from headrace.server.ui.openapi import ANSWERS, operations
from tests import needs
from tests.places import ROOT
from tests.server.conftest import TinyServer

CONFIG = ROOT / "tests" / "clients" / "schemathesis.toml"
SAID = [{"role": "user", "content": "a"}]
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


SOME = "^/(v1/(embeddings|models|responses)|api/generate|detokenize|version|health)$"
"""Paths of every kind: with texts, tokens and vectors, streams, stored answers, and without a body."""


@pytest.mark.long
@pytest.mark.parametrize(("paths", "examples", "least"), [(SOME, 2, 60), (".", 8, 400)])
def test_schemathesis_finds_nothing(quick: TinyServer, paths: str, examples: int, least: int) -> None:
    """`examples` at most a route, kind of data and phase; they come to at least `least`."""
    options = ("--include-path-regex", paths, "--exclude-path", "/live", "--max-examples", str(examples))
    done = schemathesis(quick.url, *options)  # /live is an endless stream
    assert done.returncode == 0, shortened(done.stdout)
    generated = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert generated is not None and int(generated[1]) > least, shortened(done.stdout)
    assert quick.idle


@pytest.mark.long
def test_schemathesis_finds_planted_errors(quick: TinyServer) -> None:
    """An answer of another type, and a bound that the server does not keep."""
    document = quick.app.openapi()
    changed = deepcopy(document)
    schemas = document["components"]["schemas"]
    schemas["VersionAnswer"]["properties"]["version"] = {"type": "integer"}
    schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]["maximum"] = 5
    try:
        done = schemathesis(quick.url, "--include-path-regex", "^/(version|detokenize|health)$")
    finally:
        quick.app.openapi_schema = changed
    assert done.returncode == 1, shortened(done.stdout)
    _, failures = done.stdout.split("FAILURES", 1)
    found = set(re.findall(r"^_+ (\w+ /\w+) _+$", failures, re.MULTILINE))
    assert found == {"GET /version", "POST /detokenize"}, shortened(done.stdout)


def undescribed(app: FastAPI) -> list[str]:
    """Routes of the document without documented answers."""
    return [
        f"{method} {path}" for method, path, _ in operations(app.openapi()) if (method, path) not in ANSWERS
    ]


def test_every_route_documents_its_answers_and_errors(quick: TinyServer) -> None:
    document = quick.app.openapi()
    assert undescribed(quick.app) == []
    for method, path, operation in operations(document):
        assert operation["responses"]["200"]["content"], path
        assert "ErrorAnswer" in str(operation["responses"]["500"]), path
        assert "422" not in operation["responses"], path
        if method == "post":
            assert "#/components/schemas/" in str(operation["requestBody"]), path
    assert "HTTPValidationError" not in document["components"]["schemas"]


ASKED: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/v1/completions"): {"prompt": "a", "explain": True, "logprobs": 1, "prompt_logprobs": 1,
        "return_token_ids": True},
    ("post", "/v1/chat/completions"): {"messages": SAID, "logprobs": True, "top_logprobs": 1,
        "return_token_ids": True, "prompt_logprobs": 1},
    ("post", "/v1/responses"): {"input": "a", "explain": True},
    ("post", "/v1/messages"): {"messages": SAID, "max_tokens": 3},
    ("post", "/v1/messages/count_tokens"): {"messages": SAID},
    ("post", "/v1/embeddings"): {"input": "a"},
    ("post", "/api/chat"): {"messages": SAID, "stream": False, "logprobs": True, "options": {"num_predict": 3}},
    ("post", "/api/generate"): {"prompt": "a", "stream": False, "options": {"num_predict": 3}},
    ("post", "/api/embed"): {"input": "a"},
    ("post", "/api/embeddings"): {"prompt": "a"},
    ("post", "/api/show"): {"model": "tiny"},
    ("post", "/tokenize"): {"prompt": "a", "return_token_strs": True},
    ("post", "/detokenize"): {"tokens": [5]},
}  # fmt: skip


def unnamed(value: Any, schema: Any, schemas: dict[str, Any], where: str = "") -> list[str]:
    """Fields of an answer that its schema does not name."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return min((unnamed(value, part, schemas, where) for part in schema["anyOf"]), key=len)
    if isinstance(value, list):
        return [field for item in value for field in unnamed(item, schema.get("items", {}), schemas, where)]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    missing = [f"{where}.{name}" for name in value if name not in schema["properties"]]
    known = [name for name in value if name in schema["properties"]]
    return missing + [
        field
        for name in known
        for field in unnamed(value[name], schema["properties"][name], schemas, f"{where}.{name}")
    ]


def test_the_document_names_every_field_of_an_answer(quick: TinyServer) -> None:
    document = quick.app.openapi()
    schemas = document["components"]["schemas"]
    found = []
    for method, path, operation in operations(document):
        content = operation["responses"]["200"]["content"].get("application/json")
        if content is None or "{" in path:
            continue
        answer = quick.http.request(method, path, json=ASKED.get((method, path)))
        assert answer.status_code == 200, (path, answer.text)
        found += unnamed(answer.json(), content["schema"], schemas, path)
    assert found == []


def test_an_undocumented_route_is_noticed() -> None:
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
    changed = quick.app.openapi()["components"]["schemas"]["EmbeddingRequest"]["properties"]["priority"]
    names = next(part["enum"] for part in changed["anyOf"] if "enum" in part)
    assert names == list(PRIORITIES)
    assert {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY, "type": "integer"} in changed["anyOf"]
