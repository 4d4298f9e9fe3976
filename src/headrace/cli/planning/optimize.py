"""`headrace optimize`: the techniques of the guides, for this model, machine and load."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.cli.parser import add_command, add_number, check_range
from headrace.cli.planning.goal import machine_here
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.sim.tuning.checklist import Checklist

EXAMPLES = """\
examples:
  headrace optimize                                              the bundled model on this machine
  headrace optimize shape:llama-3.1-8b --rate 0.2 --prompt-tokens 2000
  headrace optimize shape:llama-3.1-8b --hardware h100 --rate 20
  headrace optimize ./my-model --quantization int8 --json
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "optimize", "[options] [MODEL]", examples=EXAMPLES,
        summary="which techniques are on, what each gains here, and the next step",
        description="Print the techniques of the usual guides for one model, machine and load: on, off or not for you, "
        "the gain that the cost model predicts, and the command that turns it on. No weight is read.",
    )  # fmt: skip
    add_model_argument(parser)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--hardware", metavar="NAME", default="this",
        help="this, or a machine as `headrace plan --hardware` takes it (default: this)",
    )  # fmt: skip
    add_number(load, "--rate", None, "requests a second (default: as many as can be served)", "R", float)
    add_number(load, "--prompt-tokens", None, "tokens of a prompt (default: 220, a usual chat)")
    add_number(load, "--output-tokens", None, "tokens of an answer (default: 195)")
    parser.add_argument("--json", action="store_true", help="print plain values for programs")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.plan.hardware_table import THIS, find_hardware
    from headrace.sim.planner.model import open_model
    from headrace.sim.planner.speed import Speeds, Traffic
    from headrace.sim.tuning.checklist import checklist
    from headrace.sim.tuning.formula import USUAL

    check_range("rate", args.rate, 1e-6, 1e6)
    check_range("prompt-tokens", args.prompt_tokens, 1, 100_000_000)
    check_range("output-tokens", args.output_tokens, 1, 100_000_000)
    config = engine_config(args)
    if not hasattr(args, "step_time_budget") and config.kv_cache and config.enable_chunked_prefill:
        config = replace(config, step_time_budget="auto")  # as `headrace serve` does
    hardware = find_hardware(args.hardware)
    profile, words = None, f"the data sheet of {hardware.title}"
    model = open_model(config.model)
    if hardware.name == THIS:
        hardware, profile, words = machine_here(config)
    longest = config.max_model_len or model.spec.max_position
    prompt = args.prompt_tokens or min(USUAL.prompt, max(1, longest * 3 // 4))
    output = args.output_tokens or min(USUAL.output, max(1, longest - prompt))
    if prompt + output > longest:
        raise ConfigError(
            f"a prompt of {prompt} and an answer of {output} tokens are longer than the context of {longest} tokens; "
            f"lower --prompt-tokens or --output-tokens to {longest} together"
        )
    found = checklist(config, model, hardware, Speeds(profile), Traffic(prompt, output), words, args.rate)
    print(json.dumps(asdict(found), indent=2) if args.json else _text(found))
    return 0


def _text(found: Checklist) -> str:
    from headrace.plan.report import table

    point, traffic = found.point, found.traffic
    lines = [
        f"{found.model} on {found.hardware}, by {found.profile}",
        f"{point.batch} requests in flight of {traffic.prompt} + {traffic.output} tokens: TTFT {point.ttft_s:.3g} s, "
        f"TPOT {point.tpot_s:.3g} s, {point.output_per_s:,.0f} output tokens/s predicted",
    ]
    if found.use is not None:
        lines.append(
            f"the rate is {100 * found.use:.0f} % of what the machine can serve"
            + ("; requests queue without end: use more machines or fewer bits" if found.use > 1 else "")
        )
    rows = [("technique", "state", "gain", "of", "why", "next step")]
    rows += [
        (
            item.technique, item.state, "-" if item.gain is None else f"{item.gain:.2f}x", item.measure, item.why,
            item.next,
        )
        for item in found.items
    ]  # fmt: skip
    return "\n".join([*lines, "", table(rows, right=frozenset({2}))])
