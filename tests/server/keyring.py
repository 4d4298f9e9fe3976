"""Servers with keys, for the tests of traffic."""

from __future__ import annotations

from typing import Any

import httpx

from headrace.server.access.key_file import KeySources
from headrace.server.access.keys import Caller, Key, digest_of
from headrace.server.access.traffic import Rules, TrafficOptions
from tests.server.conftest import TinyServer


def secret(name: str) -> str:
    return f"sk-{name}-0123456789abcdef"


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(name)}"}


def keyed(*callers: Caller, rules: dict[str, Any] | None = None, **options: Any) -> TrafficOptions:
    """Traffic for these callers, whose keys are `secret(name)`."""
    keys = KeySources(tuple(Key(digest_of(secret(caller.name)), caller) for caller in callers))
    return TrafficOptions(rules=Rules(keys, **(rules or {})), **options)


def complete(server: TinyServer, name: str = "", **body: Any) -> httpx.Response:
    """POST /v1/completions, with the key of that name."""
    headers = bearer(name) if name else {}
    return server.http.post("/v1/completions", json={"prompt": [1], "max_tokens": 4} | body, headers=headers)


def code(answer: httpx.Response) -> tuple[int, str | None]:
    """Status and the code of an error."""
    return answer.status_code, answer.json().get("error", {}).get("code")
