"""API keys: stored as hashes, compared in constant time; and what each has used."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from headrace.errors import ConfigError, NotPermitted

MAX_KEYS = 1000
"""Every request is compared with all of them; a thousand comparisons take a tenth of a millisecond."""

MIN_KEY_CHARS, MAX_KEY_CHARS = 8, 1024

MAX_NAMES = 4096
"""Callers that are counted by name. After many changes of keys, those beyond it are counted together."""

OTHERS = "others"
NAMELESS = "anonymous"


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key. Logs, metrics and answers show `name`, and nothing else about a key.

    weight: share under the fair order, relative to the other callers' weights. max_priority: the most urgent priority
    of its requests, where lower numbers are more urgent; None for any. admin: may see other callers' requests.
    requests_per_minute, tokens_per_minute: None for no limit.
    """

    name: str
    weight: float = 1.0
    max_priority: int | None = 0
    admin: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


ANYONE = Caller("", max_priority=None, admin=True)
"""Every caller of a server without keys."""

NOBODY = Caller("")
"""The caller of a path that needs no key, on a server with keys."""


def caller_of(request: Request) -> Caller:
    """The caller that the key check found; a FastAPI dependency."""
    caller: Caller = getattr(request.state, "caller", ANYONE)
    return caller


def administrator(caller: Annotated[Caller, Depends(caller_of)]) -> None:
    """A FastAPI dependency of routes that show other callers' requests. Raises NotPermitted."""
    if not caller.admin:
        raise NotPermitted("this is for keys with admin rights")


def digest_of(key: str) -> bytes:
    """SHA-256 of a key. Keys are long and random, so a slow hash would add no protection."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def checked_key(key: str) -> str:
    """Raises ValueError, which does not quote the key, for a malformed one."""
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS or not all("!" <= char <= "~" for char in key):
        raise ValueError(
            f"a key must have {MIN_KEY_CHARS} to {MAX_KEY_CHARS} characters, visible ASCII without spaces"
        )
    return key


@dataclass(frozen=True, slots=True)
class Key:
    """`digest` is the SHA-256 of the key; the key itself is not kept."""

    digest: bytes
    caller: Caller


class KeyRing:
    """The valid keys. With an empty ring, no key is required."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys: tuple[Key, ...] = ()
        self.replace(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def callers(self) -> list[Caller]:
        return [key.caller for key in self._keys]

    def replace(self, keys: Iterable[Key]) -> None:
        """Use these keys from the next request on. Raises ConfigError if two have the same name or value."""
        keys = tuple(keys)
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"there are {len(keys)} keys; at most {MAX_KEYS} are allowed")
        for what, found in (
            ("name", [key.caller.name for key in keys]),
            ("value", [key.digest for key in keys]),
        ):
            twice = next((at for at, one in enumerate(found) if one in found[:at]), None)
            if twice is not None:
                name = keys[twice].caller.name
                raise ConfigError(f"two keys have the same {what}; one of them is named {name!r}")
        self._keys = keys

    def find(self, token: bytes) -> Caller | None:
        """The caller whose key it is. Takes the same time for every token."""
        digest = hashlib.sha256(token).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key.caller
        return found


@dataclass(slots=True)
class Usage:
    """Counts since the server started. `refused` by the error's code."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class KeyUsage:
    """Usage by the name of the key; `anonymous` for requests without one."""

    def __init__(self) -> None:
        self._usages: dict[str, Usage] = {}
        self.unauthorized = 0
        """Requests with a missing or wrong key."""

    def of(self, name: str) -> Usage:
        """The counts of one caller, which the gate adds to."""
        name = name or NAMELESS
        if name not in self._usages and len(self._usages) >= MAX_NAMES:
            name = OTHERS
        return self._usages.setdefault(name, Usage())

    def items(self) -> list[tuple[str, Usage]]:
        """(name, counts) of all callers that have sent a request, by name."""
        return sorted(self._usages.items())
