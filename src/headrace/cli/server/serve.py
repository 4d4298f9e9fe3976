"""`headrace serve`: a model behind the APIs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.cli.parser import add_command, add_number, check_range, needs_extra
from headrace.cli.planning.goal import add_goal_flag, settled_for
from headrace.cli.server.flags import (
    LOG_FORMATS,
    add_connection_flags,
    add_reply_flags,
    add_traffic_flags,
    connection_limits,
    served_names,
    traffic_options,
)
from headrace.config import EngineConfig

if TYPE_CHECKING:
    import socket

    from headrace.server.run import ServeOptions

EXAMPLES = """\
examples:
  headrace serve                                          the bundled model on http://127.0.0.1:8000
  headrace serve ./my-model --port 9000 --served-model-name my-model
  headrace serve tale --kv-cache-memory 2GB --max-num-seqs 32
  headrace serve tale --for latency                       batch, steps, KV type and drafts for a goal
  headrace serve tale --for ttft=0.3,tpot=0.03            the same for times that 90 % of requests keep
  headrace serve tale --host 0.0.0.0 --api-key-file keys.toml     for others, with keys: see docs/serving.md

Then, from anything that speaks the OpenAI API:
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "tale", "prompt": "Once upon a time", "max_tokens": 50}'
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "serve", "[options] [MODEL]", summary="serve a model over HTTP", examples=EXAMPLES,
        description="Serve a model over HTTP, streamed or whole: OpenAI's API (chat completions, completions, "
        "responses, embeddings, models), Anthropic's Messages API and Ollama's API, with a page at / and the API's "
        "documentation at /docs. Ends on Ctrl-C or SIGTERM, after running requests have finished.",
    )  # fmt: skip
    add_model_argument(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add_number(group, "--port", 8000, "0 takes a free one")
    group.add_argument(
        "--served-model-name", nargs="+", default=[], metavar="NAME",
        help="names of the model in requests; answers use the first (default: the model's name)",
    )  # fmt: skip
    group.add_argument(
        "--pooling", default="last", choices=("last", "mean"),
        help="how /v1/embeddings makes one vector of a prompt's hidden states, where a request does not say "
        "(default: %(default)s)",
    )  # fmt: skip
    add_number(group, "--max-body-bytes", 16 * 2**20, "largest request body")
    stored = "memory for stored responses (previous_response_id); 0 stores none"
    add_number(group, "--response-store-bytes", 64 * 2**20, stored)
    add_number(
        group, "--shutdown-timeout", 30, "seconds that running requests get to finish at shutdown", "S"
    )
    hung = (
        "seconds of silence after which a hung engine is killed and started again; a step of more than 512 tokens "
        "gets more, by the speed of those before it; 0 never does"
    )
    add_number(group, "--engine-timeout", 60.0, hung, "S", float)
    group.add_argument(
        "--log-level", default="warning", choices=("debug", "info", "warning", "error"),
        help="info logs every request (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--otlp-traces-endpoint", default=None, metavar="URL",
        help="send a trace of each request there, as OTLP over HTTP (default: none; needs the otel extra)",
    )  # fmt: skip
    group.add_argument(
        "--log-format", default=LOG_FORMATS[0], choices=LOG_FORMATS,
        help="lines for people, or JSON objects for programs (default: %(default)s)",
    )  # fmt: skip
    add_goal_flag(parser)
    add_traffic_flags(parser)
    add_reply_flags(parser)
    add_connection_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises ConfigError or ModelError where that cannot begin."""
    check_range("port", args.port, 0, 65_535)
    check_range("max-body-bytes", args.max_body_bytes, 1, 2**31)
    check_range("response-store-bytes", args.response_store_bytes, 0, 2**40)
    check_range("shutdown-timeout", args.shutdown_timeout, 0, 86_400)
    check_range("engine-timeout", args.engine_timeout, 0, 86_400)
    with needs_extra("server", "headrace serve"):
        from headrace.server.http.listener import listen

    with listen(args.host, args.port) as listener:  # first: an address that cannot be used shows at once
        return _serve(*_options(args), listener)


def _options(args: argparse.Namespace) -> tuple[EngineConfig, ServeOptions]:
    from headrace.core.types import Pooling

    names = served_names(args)
    with needs_extra("server", "headrace serve"), _uncollected():
        from headrace.server.run import ServeOptions
        from headrace.serving.client.child import ENGINE_COMMAND

        limits = connection_limits(args)
        config = engine_config(args)
        settled = settled_for(args, config)
        traffic = traffic_options(args, os.environ.pop("HEADRACE_API_KEY", None))
    options = ServeOptions(
        host=args.host,
        port=args.port,
        names=names,
        max_body_bytes=args.max_body_bytes,
        pooling=Pooling(args.pooling),
        response_store_bytes=args.response_store_bytes,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        traffic=traffic,
        drain_s=args.shutdown_timeout,
        engine_timeout_s=args.engine_timeout,
        connections=limits,
        log_level=args.log_level,
        log_format=args.log_format,
        otlp_traces_endpoint=args.otlp_traces_endpoint,
        engine_command=(*ENGINE_COMMAND, "--log-format", args.log_format),
    )
    if settled is not None:
        config = settled.config
        for line in settled.describe():
            say(f"headrace: {line}")
    elif not hasattr(args, "step_time_budget") and config.kv_cache:
        config = replace(config, step_time_budget="auto")  # streams are read while they are written
    if traffic.rules.keys.several and not hasattr(args, "scheduling_policy"):
        config = replace(
            config, scheduling_policy="fair"
        )  # equal shares for keys, however many requests each sends
    return config, options


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: an eighth of the time of these imports, all of whose objects live on."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _serve(config: EngineConfig, options: ServeOptions, listener: socket.socket) -> int:
    from headrace.server.run import serve
    from headrace.server.shutdown import held

    name = options.names[0] if options.names else config.model
    with held():
        say(f"headrace: loading {config.model}{_plan(config)}")
        return serve(config, options, listener, lambda url: _announce(url, name))


def _plan(config: EngineConfig) -> str:
    """What a model at hand will need; one that does not fit is refused before a process is started."""
    from headrace.build import survey
    from headrace.models.source import is_at_hand
    from headrace.plan.report import summary

    if not is_at_hand(config.model):
        return ""
    plan = survey(config)  # goes with this call, and with it the model's open files
    return f": {summary(plan.resolved, plan.ledger)}"


def _announce(url: str, name: str) -> None:
    body = json.dumps({"model": name, "prompt": "Once upon a time", "max_tokens": 50})
    say(
        f"headrace: {name} is ready at {url} (open it in a browser; Ctrl-C ends)\n"
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' \\\n"
        f"    -d {shlex.quote(body)}"
    )


def say(text: str) -> None:
    """Print a line. Where that fails (closed pipe, full disk) print nothing from then on: the server keeps running."""
    try:
        print(text, flush=True)
    except OSError:
        # Python keeps what could not be written, and would fail again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
