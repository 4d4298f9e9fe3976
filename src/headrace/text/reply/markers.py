"""Markers in text that arrives in pieces."""

from __future__ import annotations


def begun(text: str, marker: str, start: int = 0) -> int:
    """Where the longest ending of `text` behind `start` begins that more text could make the marker; len(text) if none.

    Looks at fewer characters than the marker has.
    """
    at = max(start, len(text) - len(marker) + 1)
    while (at := text.find(marker[0], at)) >= 0:
        if marker.startswith(text[at:]):
            return at
        at += 1
    return len(text)


def cut_off(text: str, at: int, marker: str) -> bool:
    """The text ends inside of a marker that begins at `at`, or at `at` itself."""
    return len(text) - at < len(marker) and marker.startswith(text[at:])
