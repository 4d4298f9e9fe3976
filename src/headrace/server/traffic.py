"""The rules of traffic: who may call, how much, how long; and what was used. One object for the whole server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.server.caller import ANYONE, Caller
from headrace.server.key_file import KeySources
from headrace.server.key_usage import KeyUsage
from headrace.server.keys import KeyRing
from headrace.server.rate_limit import RateLimiter
from headrace.serving.admission import Admission
from headrace.serving.clock import MONOTONIC, Clock
from headrace.serving.cost import OutputEstimate


@dataclass(frozen=True, slots=True)
class Rules:
    """`queue_timeout_s`, `request_timeout_s`: most that requests may ask for, None for no limit.
    `share_prefix`: callers with different keys may share prefix blocks, and see by the time it takes what others sent.
    """

    keys: KeySources = field(default_factory=KeySources)
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    share_prefix: bool = False


class Traffic:
    """`admission` None: whatever the engine takes. `longest`: see OutputEstimate."""

    def __init__(
        self,
        rules: Rules | None = None,
        admission: Admission | None = None,
        clock: Clock = MONOTONIC,
        longest: int | None = None,
    ) -> None:
        self.rules = rules or Rules()
        self.admission = admission
        self.estimate = OutputEstimate(longest)
        self.usage = KeyUsage()
        self.limiter = RateLimiter(clock)
        self.keys = KeyRing(self.rules.keys.load())
        self._on_reload: list[Callable[[frozenset[str]], None]] = [self.limiter.keep]

    @property
    def names(self) -> frozenset[str]:
        """Of all callers there are now."""
        return frozenset(caller.name for caller in self.keys.callers or [ANYONE])

    def on_reload(self, keep: Callable[[frozenset[str]], None]) -> None:
        """Call `keep` with `names` after each change of the keys, to delete what belongs to others."""
        self._on_reload.append(keep)

    def reload(self) -> None:
        """Read the keys again. Raises ConfigError where they are wrong, and keeps the old ones."""
        self.keys.replace(self.rules.keys.load())
        names = self.names
        for keep in self._on_reload:
            keep(names)

    def caller(self, authorization: bytes | None, api_key: bytes | None = None) -> Caller | None:
        """Whose key an Authorization header carries, or an x-api-key header; None for nobody's, and where the two are
        of different callers. Without keys everybody is ANYONE."""
        if not len(self.keys):
            return ANYONE
        if api_key is not None:
            found = self.keys.find(api_key.strip())
            return found if authorization is None or found == self.caller(authorization) else None
        scheme, _, token = (authorization or b"").partition(b" ")
        found = self.keys.find(token.strip())
        return found if scheme.lower() == b"bearer" else None

    def salt(self, caller: Caller, asked: str) -> str:
        """The cache salt of a caller's request: prompts of different callers have no prefix block in common."""
        if not caller.name or self.rules.share_prefix:
            return asked
        return hashlib.sha256(f"{caller.name}\0{asked}".encode("utf-8", "surrogatepass")).hexdigest()
