"""Options of `headrace serve`: traffic and keys, connections, and how replies are parsed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.cli.parser import add_number, check_range
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.server.access.traffic import TrafficOptions
    from headrace.server.http.connection import ConnectionLimits

LOG_FORMATS = ("text", "json")
"""As in `headrace.serving.logs`; a test compares them."""

# ---- Traffic and keys ----

MAX_QUEUE_TOKENS = 2**40
MAX_SECONDS = 7 * 86_400
MAX_NAME_CHARS = 1024
"""As `MAX_MODEL_NAME_CHARS` of `headrace.server.requests.fields`; a test compares them."""


def add_traffic_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic and keys")
    refused = "completions that may run or wait before requests are refused with 429"
    add_number(group, "--max-queue", 2048, refused)
    group.add_argument(
        "--max-queue-tokens", type=int, default=None, metavar="N",
        help="tokens of all of them: prompts, and output that is expected or generated (default: 16 times what the KV "
        "cache holds, 131072 at least)",
    )  # fmt: skip
    waiting = "seconds that a request may wait without being scheduled (default: no limit)"
    add_number(group, "--queue-timeout", None, waiting, "S", float)
    whole = "seconds that a request may take in all (default: no limit)"
    add_number(group, "--request-timeout", None, whole, "S", float)
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
        help="let callers with different keys share the KV of equal prefixes; the time to the first token then reveals "
        "to them what others sent",
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


def traffic_options(args: argparse.Namespace, environment_key: str | None) -> TrafficOptions:
    """server.access.traffic.TrafficOptions of the flags. Raises ConfigError where one is wrong.

    With a key file, SIGHUP is blocked from now on, until the server that reads the file again unblocks it.
    """
    from headrace.server.access.traffic import TrafficOptions, hold_hangups

    check_range("max-queue", args.max_queue, 1, 1_000_000)
    check_range("max-queue-tokens", args.max_queue_tokens, 1, MAX_QUEUE_TOKENS)
    check_range("queue-timeout", args.queue_timeout, 0, MAX_SECONDS)
    check_range("request-timeout", args.request_timeout, 0, MAX_SECONDS)
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


def served_names(args: argparse.Namespace) -> tuple[str, ...]:
    """The names of --served-model-name. Raises ConfigError for one that no request could give."""
    for name in args.served_model_name:
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise ConfigError(
                f"--served-model-name takes names of 1 to {MAX_NAME_CHARS} printable characters, got {name!r:.80}"
            )
    return tuple(args.served_model_name)


# ---- Connections ----

_CONNECTION_LIMITS: tuple[tuple[str, float, float, float, str], ...] = (
    ("max_connections", 1, 1_000_000, 4096, "open connections; the next ones get 503"),
    ("max_header_bytes", 1024, 2**24, 64 * 2**10, "largest head of a request; larger ones get 431"),
    ("header_timeout_s", 0.1, 86_400, 10.0, "seconds that the head of a request may take to arrive"),
    ("body_timeout_s", 0.1, 86_400, 30.0, "seconds that each MiB of a request's body may take to arrive"),
    ("keep_alive_timeout_s", 1, 86_400, 75.0, "seconds that an idle connection is kept"),
    ("slow_reader_timeout_s", 0.1, 86_400, 30.0,
     "seconds that a stalled client gets to read 32 KiB; then its request is aborted"),
)  # fmt: skip
"""(field of ConnectionLimits, least, most, default, help). The defaults are those of ConnectionLimits, which loads an
HTTP server and so cannot be imported for help; a test compares them."""


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connections")
    for field, least, _, default, text in _CONNECTION_LIMITS:
        kind = int if isinstance(least, int) else float
        add_number(group, f"--{_flag(field)}", default, text, kind=kind)


def connection_limits(args: argparse.Namespace) -> ConnectionLimits:
    """Raises ConfigError for a limit out of its range."""
    from headrace.server.http.connection import ConnectionLimits

    given = {field: getattr(args, field.removesuffix("_s")) for field, *_ in _CONNECTION_LIMITS}
    for field, least, most, _, _ in _CONNECTION_LIMITS:
        check_range(_flag(field), given[field], least, most)
    return ConnectionLimits(**given)


def _flag(field: str) -> str:
    return field.removesuffix("_s").replace("_", "-")


# ---- Replies ----

AUTO = "auto"

# As in `headrace.text.tools.formats`, which takes longer to import than help should; a test compares them.
TOOL_CALL_PARSERS = (
    AUTO, "openai", "gemma4", "functiongemma", "mistral", "deepseek_v3", "deepseek_v31", "cohere_command3", "internlm",
    "phi4_mini_json", "granite", "lfm2", "seed_oss", "glm45", "qwen3_coder", "olmo3", "llama4_json", "llama4_pythonic",
    "hermes", "llama3_json", "pythonic", "none",
)  # fmt: skip
REASONING_PARSERS = (
    AUTO, "openai_gptoss", "gemma4", "seed_oss", "cohere_command3", "mistral", "granite", "granite_tags", "qwen3",
    "glm45", "olmo3", "deepseek_v3", "deepseek_r1", "none",
)  # fmt: skip


def add_reply_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("replies")
    group.add_argument(
        "--tool-call-parser", default=AUTO, choices=TOOL_CALL_PARSERS,
        help="how the model writes tool calls; auto asks its chat template (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--reasoning-parser", default=AUTO, choices=REASONING_PARSERS,
        help="how the model marks its reasoning; auto asks its chat template (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--enable-auto-tool-choice", action="store_true", help="as for vLLM; here it is always possible"
    )
