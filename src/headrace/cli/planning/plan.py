"""`headrace plan`: memory, speed and cost of a model on any machine, and the best settings for a load."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from headrace.cli.parser import add_command, add_number, check_range, check_writable
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.core.eviction import Eviction
    from headrace.plan.hardware import Hardware
    from headrace.sim.planner.overview import Question

DEFAULT_MODEL = "tale"
ALL = "all"
MOST_TOKENS = 100_000_000
MOST_MODELS = 16

EXAMPLES = """\
examples:
  headrace plan shape:llama-3.1-8b                                     on this machine
  headrace plan shape:llama-3.1-70b --hardware 4xa100-80g --price-per-hour 8
  headrace plan shape:qwen3-8b --hardware l4 --fit 20GiB --formats stored,int8,int4-a16
  headrace plan shape:llama-3.1-70b --hardware h100,2xh100,8xa10g --users 50 --ttft 0.5 --tpot 0.05
  headrace plan shape:qwen3-32b shape:qwen3-8b --hardware all --requests-per-day 200000 --tpot 0.05
  headrace plan ./my-model --prompt-tokens 4000 --output-tokens 300 --prefix-hit 0.8 --json
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "plan", "[options] [MODEL ...]", examples=EXAMPLES,
        summary="memory, speed and cost of a model on any machine, before anything is bought or loaded",
        description="Predict from a model's config alone what it needs, how fast it runs and what it costs, on this "
        "machine or on one of a table of GPUs and CPUs, and search for the settings that serve a load best. No weight "
        "is read. The status is 1 where no setting keeps what was asked.",
    )  # fmt: skip
    parser.add_argument(
        "model", nargs="*", default=[DEFAULT_MODEL],
        help=f"bundled name, folder, GGUF file, hub id or shape:NAME; the search takes the best of several "
        f"(default: {DEFAULT_MODEL})",
    )  # fmt: skip
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--hardware", metavar="NAME", default="this",
        help="this, a device such as h100, l4 or epyc-9654, several in one machine (4xa10g), some of these with "
        "commas between, or all; a wrong name lists them (default: this)",
    )  # fmt: skip
    machine.add_argument(
        "--fit", metavar="SIZE", help="memory of each device instead of its own, such as 24GiB"
    )
    machine.add_argument(
        "--formats", metavar="LIST",
        help="formats of weights to choose from, with commas between: stored, and names of --quantization "
        "(default: stored, int8, int4 on CPUs; stored, fp8, int8, int4-a16 on GPUs)",
    )  # fmt: skip
    machine.add_argument(
        "--price-per-hour", metavar="PRICE",
        help="of the machine, in any currency; of several: h100=2.5,4xa10g=3, where a device's price counts for each",
    )  # fmt: skip
    load = parser.add_argument_group("load")
    add_number(load, "--prompt-tokens", None, "tokens of a prompt (default: 1024, less in a short context)")
    add_number(load, "--output-tokens", None, "tokens of an answer (default: 256, less in a short context)")
    add_number(
        load, "--prefix-hit", 0.0, "share of a prompt that the prefix cache holds, from 0 to 1", "X", float
    )
    add_number(load, "--users", None, "requests in flight at once")
    add_number(load, "--requests-per-day", None, "requests of a day, evenly", "N", float)
    add_number(load, "--ttft", None, "most seconds to the first token, on average", "SECONDS", float)
    add_number(load, "--tpot", None, "most seconds between tokens, on average", "SECONDS", float)
    load.add_argument(
        "--kv-eviction", choices=("off", "snapkv"), default="off",
        help="as of `headrace serve`: KV heads give up tokens of long prompts; answers are not exact (default: off)",
    )  # fmt: skip
    add_number(load, "--kv-eviction-budget", None, "tokens that a KV head keeps (default: 1024)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print plain values for programs")
    output.add_argument(
        "--plot", metavar="FILE", help="draw memory by format and speed by batch: png, svg or pdf"
    )


def run(args: argparse.Namespace) -> int:
    from headrace.bench.progress import ProgressBar
    from headrace.sim.planner.data import plan_data
    from headrace.sim.planner.overview import make_overview
    from headrace.sim.planner.plot import check_plot, plot_overview
    from headrace.sim.planner.report import plan_report

    if args.plot is not None:
        check_plot(args.plot)
        check_writable("the plot", args.plot)
    question = _question(args)
    with ProgressBar(len(question.models) * len(question.machines)) as progress:
        overview = make_overview(question, progress)
    print(
        json.dumps(plan_data(overview), indent=2) if args.json else plan_report(overview),
        end="\n" * args.json,
    )
    if args.plot is not None:
        plot_overview(overview, args.plot)
    if overview.problem is not None:
        if not args.json:
            raise ConfigError(overview.problem)
        return 1
    return 0


def _question(args: argparse.Namespace) -> Question:
    from headrace.plan.units import parse_bytes
    from headrace.sim.planner.model import open_model
    from headrace.sim.planner.overview import Question
    from headrace.sim.planner.search import Promise
    from headrace.sim.planner.speed import Traffic
    from headrace.sim.profile_store import this_profile

    check_range("prompt-tokens", args.prompt_tokens, 1, MOST_TOKENS)
    check_range("output-tokens", args.output_tokens, 1, MOST_TOKENS)
    check_range("prefix-hit", args.prefix_hit, 0, 1)
    check_range("users", args.users, 1, 10_000_000)
    check_range("requests-per-day", args.requests_per_day, 1, 1e12)
    check_range("ttft", args.ttft, 1e-6, 1e6)
    check_range("tpot", args.tpot, 1e-6, 1e6)
    if len(args.model) > MOST_MODELS:
        raise ConfigError(f"headrace plan compares up to {MOST_MODELS} models, got {len(args.model)}")
    fit = None if args.fit is None else parse_bytes(args.fit)
    if fit is not None:
        check_range("fit", fit, 1 << 20, 1 << 50)
    machines = _machines(args.hardware)
    formats = None if args.formats is None else tuple(name.strip() for name in args.formats.split(","))
    models = tuple(open_model(name) for name in dict.fromkeys(args.model))
    longest = max(model.spec.max_position for model in models)
    return Question(
        models,
        machines,
        Traffic.within(longest, args.prompt_tokens, args.output_tokens, args.prefix_hit),
        Promise(args.users, args.ttft, args.tpot, args.requests_per_day),
        formats,
        fit,
        args.price_per_hour,
        this_profile(),
        _eviction(args),
    )


def _eviction(args: argparse.Namespace) -> Eviction | None:
    from headrace.plan.eviction import choose_sizes

    check_range("kv-eviction-budget", args.kv_eviction_budget, 2, MOST_TOKENS)
    if args.kv_eviction == "off":
        if args.kv_eviction_budget is not None:
            raise ConfigError("--kv-eviction-budget has no meaning without --kv-eviction snapkv")
        return None
    return choose_sizes(args.kv_eviction_budget, None, None, None, None)


def _machines(text: str) -> tuple[Hardware, ...]:
    from headrace.plan.hardware_table import HARDWARE, find_hardware
    from headrace.sim.planner.overview import DEVICE_COUNTS

    if text.strip().lower() == ALL:
        return tuple(one.times(count) for one in HARDWARE for count in DEVICE_COUNTS if count <= one.most)
    names = text.split(",")
    if any(name.strip().lower() == ALL for name in names):
        raise ConfigError(f"--hardware {ALL} stands alone: leave the other names out")
    return tuple(dict.fromkeys(find_hardware(name) for name in names))
