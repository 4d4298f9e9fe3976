"""The benchmark of a running server, Headrace or another, as its clients see it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.cli.bench.kind import Flags, Kind, Prepared
from headrace.cli.parser import add_number, restore_interrupts
from headrace.cli.planning.workload_flags import (
    MAX_REQUESTS,
    add_burst_flags,
    add_workload_flags,
    check_workload,
    describe_lengths,
    described,
    workload_of,
)
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.model.latency import Progress
    from headrace.bench.report import Row

BACKENDS = ("openai", "openai-chat")
"""As in `headrace.bench.serving.target`, which takes longer to import than help should; a test compares them."""
MAX_CLIENTS = 10_000
MAX_SECONDS = 86_400


def _flags(parser: Flags) -> None:
    server = parser.add_argument_group("server")
    server.add_argument(
        "--base-url",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="where it listens (default: %(default)s)",
    )
    server.add_argument(
        "--backend", choices=BACKENDS, default=BACKENDS[0], help="completions or chats (default: %(default)s)"
    )
    server.add_argument(
        "--model", "-m", metavar="NAME", help="its name there (default: the first one listed)"
    )
    server.add_argument("--api-key", metavar="KEY", help="default: the environment's OPENAI_API_KEY")
    server.add_argument(
        "--ignore-eos", action="store_true", help="ask for full lengths, where the server can do that"
    )
    server.add_argument(
        "--extra-body",
        default="{}",
        metavar="JSON",
        help='more fields of every request, such as {"top_k": 20}',
    )
    add_number(server, "--request-timeout", 600.0, "seconds", "S", float)
    work = parser.add_argument_group("requests")
    add_workload_flags(work)
    add_number(work, "--max-model-len", None, "longest sequence (default: what the server says, else 2048)")
    add_number(work, "--num-warmups", 2, "not counted")
    add_number(work, "--seed", 0, "of lengths, words and arrivals")
    when = parser.add_argument_group("arrivals")
    when.add_argument(
        "--request-rate", nargs="+", default=["inf"], metavar="R",
        help="requests a second: one or several rates, from:to:steps, or inf for all at once (default: inf)",
    )  # fmt: skip
    add_burst_flags(when)
    add_number(when, "--max-concurrency", None, "requests in flight (default: no limit)")
    clients = "closed loop: --max-concurrency clients send one request after the other for S seconds"
    add_number(when, "--duration", None, clients, "S", float)
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:S",
        help="count requests that meet the SLO, in seconds: ttft, tpot, e2el, such as ttft:0.2 tpot:0.05",
    )  # fmt: skip


def _serve(args: argparse.Namespace) -> Prepared:
    from headrace.bench.serving.http_client import Address
    from headrace.bench.serving.serve import Plan, run, serve_rows
    from headrace.bench.serving.target import BACKENDS, Target, find_model, measure_words
    from headrace.sim.workload.arrivals import Arrivals, parse_rates
    from headrace.sim.workload.slo import SLO

    restore_interrupts()
    rates = parse_rates(args.request_rate)
    _check(args)
    slo = SLO.parse(args.goodput)
    extra = _extra(args)
    address = Address.of(args.base_url)
    workload = workload_of(args)
    key = args.api_key or os.environ.get("OPENAI_API_KEY") or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("--api-key must be printable ASCII text")
    name, length = run(find_model(address, key, args.model))
    target = Target(address, name, args.backend, key, extra, args.max_model_len or length)
    words, note = run(measure_words(target))
    workload = workload.within(target.max_model_len or 2048)
    plan = Plan(
        workload, words,
        [Arrivals(rate, args.burstiness, args.burst_size) for rate in rates],
        args.num_prompts, args.num_warmups, args.max_concurrency, args.duration, args.request_timeout, slo,
        args.seed,
    )  # fmt: skip
    notes = [] if note is None else [note]
    config = {
        "model": name, "base_url": args.base_url, "request_rates": [str(rate) for rate in rates],
        "tokens_a_word": round(words.each, 3),
        "input_lengths": described(workload.inputs), "output_lengths": described(workload.outputs),
    }  # fmt: skip

    def rows(progress: Progress) -> Iterator[Row]:
        return serve_rows(target, plan, progress, notes)

    requests = args.num_prompts * workload.turns * len(rates) + bool(args.num_warmups)
    return Prepared(
        rows,
        None if args.duration is not None else requests,
        config,
        head=[f"{name} at {args.base_url}, {BACKENDS[args.backend]}: {describe_lengths(workload)}"],
        notes=notes,
    )


def _extra(args: argparse.Namespace) -> Mapping[str, Any]:
    try:
        extra = json.loads(args.extra_body)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ConfigError(f"--extra-body must be a JSON object, got {args.extra_body!r:.80}")
    return {"ignore_eos": True, **extra} if args.ignore_eos else extra


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError for a number above its maximum, and for options that do not go together."""
    check_workload(args)
    limits = {
        "num_warmups": MAX_REQUESTS, "max_concurrency": MAX_CLIENTS, "max_model_len": 2**31, "seed": 2**63,
    }  # fmt: skip
    for name, most in limits.items():
        value = getattr(args, name)
        low = 0 if name in ("num_warmups", "seed") else 1
        if value is not None and not low <= value <= most:
            raise ConfigError(f"--{name.replace('_', '-')} must be between {low} and {most}, got {value}")
    for name in ("duration", "request_timeout"):
        value, high = getattr(args, name), MAX_SECONDS
        if value is not None and not 1e-3 <= value <= high:
            raise ConfigError(f"--{name.replace('_', '-')} must be between 0.001 and {high:g}, got {value}")
    if args.duration is not None and args.max_concurrency is None:
        raise ConfigError("--duration needs --max-concurrency, the number of clients")
    if args.duration is not None and args.request_rate != ["inf"]:
        raise ConfigError(
            "--duration and --request-rate exclude each other: clients send when they have an answer"
        )


SERVE_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "serve": Kind(
            summary="a running server under load, ours or any that speaks the OpenAI API",
            description="Sends streamed requests to a server and measures what its clients see: TTFT, TPOT, ITL and "
            "the whole time, answers a second, refusals (429) and failures. Rates can be swept; requests that meet the "
            "SLO are counted as goodput. Lengths and words come from a seed, token counts from the server. The "
            "client is one process; its share of a core is shown, since it may run beside the server.",
            examples=(
                "",
                " --request-rate 2:32:5 --goodput ttft:0.2 tpot:0.05 --plot rates.png",
                " --backend openai-chat --dataset-name multi_turn --num-prompts 20 --request-rate 4",
                " --max-concurrency 500 --duration 300 --ignore-eos --json load.json",
            ),
            add_flags=_flags,
            prepare=_serve,
            columns=(
                "sent", "answered", "refused", "failed", "requests_per_s", "goodput_per_s", "output_tokens_per_s",
                "client_share",
            ),
            more_columns=(
                "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s", "tpot_p99_s", "itl_p50_s",
                "itl_p90_s", "itl_p99_s", "e2e_p50_s", "e2e_p90_s", "e2e_p99_s",
            ),
            options=(
                "backend", "dataset_name", "num_prompts", "num_warmups", "seed", "burstiness", "burst_size",
                "max_concurrency", "duration", "ignore_eos", "goodput",
            ),
            least={"num_warmups": 0, "seed": 0},
            takes_repeats=False,
            takes_model=False,
        )
    }
)  # fmt: skip
