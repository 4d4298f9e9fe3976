"""What the operator asked for about traffic, and the objects that come of it once the engine is known."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import ConfigError
from headrace.server.hosts import ANY, default_hosts, is_loopback, is_name
from headrace.server.key_file import KeySources, operator_keys
from headrace.server.origins import normal_origin
from headrace.server.traffic import Rules, Traffic
from headrace.serving.admission import Admission, default_max_tokens, longest_sequence
from headrace.serving.facts import ModelFacts
from headrace.serving.process_client import MAX_IN_FLIGHT

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
        """Raises ConfigError for keys, names and origins that are none; reads the key file once to find out."""
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
        """Raises ConfigError where the key file has become wrong."""
        tokens = self.max_queue_tokens or default_max_tokens(facts)
        return Traffic(self.rules, Admission(self.max_queue, tokens), longest=longest_sequence(facts))

    def hosts(self, bound: str) -> tuple[str, ...]:
        """Names to answer to, where the server listens on the address `bound`."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return default_hosts(bound, keys=self.rules.keys.any)

    def warn(self, bound: str) -> None:
        """Say aloud that anybody on the network may use the server, if that is so."""
        if not is_loopback(bound) and not self.rules.keys.any:
            _log.warning(
                "the server listens on %s and asks for NO KEY: everybody who can reach this machine can use it, read "
                "its metrics, and keep it busy. Give --api-key, HEADRACE_API_KEY or --api-key-file",
                bound,
            )
