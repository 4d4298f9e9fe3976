"""Options of `headrace serve` that keep callers from holding the server's connections and memory."""

from __future__ import annotations

import argparse

from headrace.errors import ConfigError
from headrace.server.http.connection import ConnectionLimits

MAX_SECONDS = 86_400

_FLAGS: tuple[tuple[str, str, float, float, str], ...] = (
    ("max-connections", "max_connections", 1, 1_000_000, "open connections; the next ones get 503"),
    ("max-header-bytes", "max_header_bytes", 1024, 2**24, "largest head of a request; larger ones get 431"),
    ("header-timeout", "header_timeout_s", 0.1, MAX_SECONDS, "seconds that the head of a request may take to arrive"),
    ("body-timeout", "body_timeout_s", 0.1, MAX_SECONDS,
     "seconds that each MiB of a request's body may take to arrive"),
    ("keep-alive-timeout", "keep_alive_timeout_s", 1, MAX_SECONDS, "seconds that an idle connection is kept"),
    ("slow-reader-timeout", "slow_reader_timeout_s", 0.1, MAX_SECONDS,
     "seconds that a caller gets to read 32 KiB when it has fallen behind; then its request is given up"),
)  # fmt: skip
"""(flag, field of ConnectionLimits, least, most, help)"""


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connections")
    for flag, name, least, _, text in _FLAGS:
        group.add_argument(
            f"--{flag}", dest=name, type=int if isinstance(least, int) else float, metavar="N",
            default=getattr(ConnectionLimits(), name), help=f"{text} (default: %(default)g)",
        )  # fmt: skip


def connection_limits(args: argparse.Namespace) -> ConnectionLimits:
    """Raises ConfigError for a limit out of its range."""
    given = {}
    for flag, name, least, most, _ in _FLAGS:
        value = getattr(args, name)
        if not least <= value <= most:
            raise ConfigError(f"--{flag} must be between {least} and {most}, got {value}")
        given[name] = value
    return ConnectionLimits(**given)
