"""API keys: held as hashes, found in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.server.caller import Caller

MAX_KEYS = 1000
"""Every request is compared with all of them; a thousand comparisons take a tenth of a millisecond."""

MIN_KEY_CHARS, MAX_KEY_CHARS = 8, 1024


def digest_of(key: str) -> bytes:
    """SHA-256 of a key. Keys are long and random, so a slow hash would guard nothing more."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def checked_key(key: str) -> str:
    """Raises ValueError, which does not quote it, for what cannot be a key."""
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
    """The keys in force. An empty ring means that no key is asked for."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys: tuple[Key, ...] = ()
        self.replace(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def callers(self) -> list[Caller]:
        return [key.caller for key in self._keys]

    def replace(self, keys: Iterable[Key]) -> None:
        """Put other keys into force, from the next request on. Raises ConfigError where they cannot be told apart."""
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
        """The caller whose key it is. Takes the same time for every token, whichever keys are near it."""
        digest = hashlib.sha256(token).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key.caller
        return found
