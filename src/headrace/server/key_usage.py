"""What each caller has used since the server started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAX_NAMES = 4096
"""Callers that are counted by name; those beyond it, after so many changes of keys, are counted together."""

OTHERS = "others"
NAMELESS = "anonymous"


@dataclass(slots=True)
class Usage:
    """Counts that only ever rise. `refused` by the error's code."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class KeyUsage:
    """Usage by the name of the key; requests without any are `anonymous`."""

    def __init__(self) -> None:
        self._usages: dict[str, Usage] = {}
        self.unauthorized = 0
        """Requests with a missing or wrong key."""

    def of(self, name: str) -> Usage:
        """The counts of one caller, to be added to."""
        name = name or NAMELESS
        if name not in self._usages and len(self._usages) >= MAX_NAMES:
            name = OTHERS
        return self._usages.setdefault(name, Usage())

    def items(self) -> list[tuple[str, Usage]]:
        """(name, counts) of all callers that have sent anything, by name."""
        return sorted(self._usages.items())
