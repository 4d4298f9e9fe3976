"""Options of `headrace serve` that say who may call, how much, and for how long."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.errors import ConfigError

MAX_QUEUE_TOKENS = 2**40
MAX_SECONDS = 7 * 86_400


def add_traffic_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic and keys")
    group.add_argument(
        "--max-queue", type=int, default=2048, metavar="N",
        help="completions that may run or wait before requests are refused with 429 (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-queue-tokens", type=int, default=None, metavar="N",
        help="tokens of all of them: prompts, and output that is expected or generated (default: 16 times what the KV "
        "cache holds, 131072 at least)",
    )  # fmt: skip
    group.add_argument(
        "--queue-timeout", type=float, default=None, metavar="S",
        help="seconds that a request may wait without being scheduled (default: no limit)",
    )  # fmt: skip
    group.add_argument(
        "--request-timeout", type=float, default=None, metavar="S",
        help="seconds that a request may take in all (default: no limit)",
    )  # fmt: skip
    group.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help="a key that callers must send; may be given several times; HEADRACE_API_KEY is one more, and is not seen "
        "in the list of processes",
    )  # fmt: skip
    group.add_argument(
        "--api-key-file", default=None, metavar="FILE",
        help="TOML or JSON with named keys, their weights, limits and rights; SIGHUP reads it again",
    )  # fmt: skip
    group.add_argument(
        "--share-prefix-across-keys", action="store_true",
        help="let callers with different keys share the KV of equal prefixes; the time to the first token then tells "
        "them what others sent",
    )  # fmt: skip
    group.add_argument(
        "--allowed-hosts", nargs="+", default=None, metavar="NAME",
        help="names under which the server answers; '*' for all (default: all with keys, or where other machines can "
        "connect; else localhost)",
    )  # fmt: skip
    group.add_argument(
        "--allowed-origins", nargs="+", default=[], metavar="ORIGIN",
        help="web pages that may call the server, such as https://example.org; '*' for all (default: its own only)",
    )  # fmt: skip


def traffic_options(args: argparse.Namespace, environment_key: str | None) -> Any:
    """server.traffic_options.TrafficOptions of the flags. Raises ConfigError where one is wrong.

    Where there is a key file, SIGHUP waits from now on for the server that will read it again.
    """
    from headrace.server.access.traffic import TrafficOptions, hold_hangups

    _check("max-queue", args.max_queue, 1, 1_000_000)
    _check("max-queue-tokens", args.max_queue_tokens, 1, MAX_QUEUE_TOKENS)
    _check("queue-timeout", args.queue_timeout, 0, MAX_SECONDS)
    _check("request-timeout", args.request_timeout, 0, MAX_SECONDS)
    options = TrafficOptions.made(
        max_queue=args.max_queue,
        max_queue_tokens=args.max_queue_tokens,
        queue_timeout_s=args.queue_timeout,
        request_timeout_s=args.request_timeout,
        api_keys=args.api_key,
        environment_key=environment_key,
        api_key_file=args.api_key_file,
        share_prefix=args.share_prefix_across_keys,
        allowed_hosts=args.allowed_hosts,
        allowed_origins=args.allowed_origins,
    )
    if args.api_key_file is not None:
        hold_hangups()
    return options


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"--{name} must be between {low} and {high}, got {value}")
