"""Finds internals of the server in texts for callers."""

from __future__ import annotations

import re

LEAKS = {
    "a path": re.compile(r"(?<![\w:/.])/(?:home|root|tmp|usr|opt|var|etc|proc|dev|mnt|work|srv)/[\w.\-]+"),
    "a source file": re.compile(r"[\w/]+\.(?:py|cpp|so)\b"),
    "a memory address": re.compile(r"\b0x[0-9a-fA-F]{5,}"),
    "a traceback": re.compile(r"Traceback|File \"|line \d+, in "),
    "an exception's class": re.compile(r"\b(?!OSError_)[A-Z]\w*(?:Error|Exception|Interrupt)\b"),
    "a module": re.compile(r"\b(?:headrace|fastapi|starlette|pydantic|uvicorn|msgspec|numpy|torch)\.\w+"),
}


def leaks(text: str) -> list[str]:
    """Internals that a text reveals, each with the place."""
    found = []
    for what, pattern in LEAKS.items():
        match = pattern.search(text)
        if match is not None:
            found.append(f"{what}: {match[0]!r}")
    return found
