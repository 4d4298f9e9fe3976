"""Traffic rules from the operator's options: who may call, how much and for how long."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import ConfigError
from headrace.server.access.hosts import ANY, default_hosts, is_loopback, is_name, normal_origin
from headrace.server.access.key_file import KeySources, operator_keys
from headrace.server.access.keys import ANYONE, Caller, KeyRing, KeyUsage
from headrace.server.access.rate_limit import RateLimiter
from headrace.serving.client.process import MAX_IN_FLIGHT
from headrace.serving.engine.state import ModelFacts
from headrace.serving.requests.admission import (
    Admission,
    OutputEstimate,
    default_max_tokens,
    longest_sequence,
)
from headrace.serving.system import MONOTONIC, Clock


@dataclass(frozen=True, slots=True)
class Rules:
    """`queue_timeout_s`, `request_timeout_s`: the largest that requests may set, None for no limit. `share_prefix`:
    callers with different keys share prefix blocks, so that latency can reveal what others sent."""

    keys: KeySources = field(default_factory=KeySources)
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    share_prefix: bool = False


class Traffic:
    """`admission` None: no limit but the engine's. `longest`: see OutputEstimate."""

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
        """Of all current callers."""
        return frozenset(caller.name for caller in self.keys.callers or [ANYONE])

    def on_reload(self, keep: Callable[[frozenset[str]], None]) -> None:
        """Call `keep` with `names` after each change of the keys, to delete other callers' state."""
        self._on_reload.append(keep)

    def reload(self) -> None:
        """Read the keys again. Raises ConfigError, and keeps the old ones, if the file is malformed."""
        self.keys.replace(self.rules.keys.load())
        names = self.names
        for keep in self._on_reload:
            keep(names)

    def caller(self, authorization: bytes | None, api_key: bytes | None = None) -> Caller | None:
        """The caller with the key in an Authorization or x-api-key header; None without a valid key, or if both are
        given for different callers. Without keys every caller is ANYONE."""
        if not len(self.keys):
            return ANYONE
        if api_key is not None:
            found = self.keys.find(api_key.strip())
            return found if authorization is None or found == self.caller(authorization) else None
        scheme, _, token = (authorization or b"").partition(b" ")
        found = self.keys.find(token.strip())
        return found if scheme.lower() == b"bearer" else None

    def salt(self, caller: Caller, asked: str) -> str:
        """The cache salt of a caller's request, so that different callers share no prefix blocks."""
        if not caller.name or self.rules.share_prefix:
            return asked
        return hashlib.sha256(f"{caller.name}\0{asked}".encode("utf-8", "surrogatepass")).hexdigest()


MAX_NAMES = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """`max_queue_tokens` None: see `admission.default_max_tokens`. `allowed_hosts` None: see `hosts.default_hosts`."""

    rules: Rules = field(default_factory=Rules)
    max_queue: int = MAX_IN_FLIGHT
    max_queue_tokens: int | None = None
    allowed_hosts: tuple[str, ...] | None = None
    allowed_origins: tuple[str, ...] = ()

    @classmethod
    def made(
        cls,
        *,
        max_queue: int,
        max_queue_tokens: int | None,
        queue_timeout_s: float | None,
        request_timeout_s: float | None,
        api_keys: Sequence[str],
        environment_key: str | None,
        api_key_file: str | None,
        share_prefix: bool,
        allowed_hosts: Sequence[str] | None,
        allowed_origins: Sequence[str],
    ) -> TrafficOptions:
        """Raises ConfigError for malformed keys, names and origins; reads the key file once to check it."""
        keys = KeySources(
            operator_keys(api_keys, environment_key), None if api_key_file is None else Path(api_key_file)
        )
        rules = Rules(keys, queue_timeout_s, request_timeout_s, share_prefix)
        Traffic(rules)
        for name in allowed_hosts or ():
            if name != ANY and not is_name(name):
                raise ConfigError(f"--allowed-hosts takes names without a port, got {name[:200]!r}")
        try:
            origins = tuple(one if one == ANY else normal_origin(one) for one in allowed_origins)
        except ValueError as error:
            raise ConfigError(f"--allowed-origins: {error}") from error
        if max(len(origins), len(allowed_hosts or ())) > MAX_NAMES:
            raise ConfigError(f"at most {MAX_NAMES} hosts and origins can be allowed")
        hosts = None if allowed_hosts is None else tuple(allowed_hosts)
        return cls(rules, max_queue, max_queue_tokens, hosts, origins)

    def traffic(self, facts: ModelFacts) -> Traffic:
        """Raises ConfigError if the key file has become malformed."""
        tokens = self.max_queue_tokens or default_max_tokens(facts)
        return Traffic(self.rules, Admission(self.max_queue, tokens), longest=longest_sequence(facts))

    def hosts(self, bound: str) -> tuple[str, ...]:
        """Host names to accept on a server that listens on the address `bound`."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return default_hosts(bound, keys=self.rules.keys.any)

    def warn(self, bound: str) -> None:
        """Log a warning if everyone on the network can use the server."""
        if not is_loopback(bound) and not self.rules.keys.any:
            _log.warning(
                "the server listens on %s and asks for NO KEY: everybody who can reach this machine can use it, read "
                "its metrics, and keep it busy. Give --api-key, HEADRACE_API_KEY or --api-key-file",
                bound,
            )


_HANGUP = frozenset({signal.SIGHUP})


def hold_hangups() -> None:
    """Block SIGHUP until `reload_on_hangup`: it would end the process while a model loads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUP)


def reload_on_hangup(traffic: Traffic) -> None:
    """Reload the key file on every SIGHUP; a malformed file changes nothing. Main thread only."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, traffic)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUP)


def _reload(traffic: Traffic) -> None:
    try:
        traffic.reload()
    except ConfigError as error:
        _log.error("the keys are unchanged: %s", error)
        return
    _log.warning("%d keys are in force", len(traffic.keys))
