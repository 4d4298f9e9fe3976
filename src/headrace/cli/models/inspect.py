"""`headrace inspect`: what a model is and what the engine would do with it, without loading its weights."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.cli.parser import add_command
from headrace.cli.planning.goal import add_goal_flag, settled_for
from headrace.errors import CheckpointError, DoesNotFit, TokenizerError

if TYPE_CHECKING:
    from headrace.build import Survey
    from headrace.plan.hardware import Machine
    from headrace.plan.resolved import ResolvedConfig
    from headrace.sim.tuning.settle import Settled

SHORT = 2048
"""Tokens of the sequence that must fit where a model is large."""

EXAMPLES = """\
examples:
  headrace inspect                                             the bundled model
  headrace inspect shape:llama-3.1-8b --max-model-len 8192     would it fit here?
  headrace inspect ./my-model --kv-cache-memory 2GB --dtype bfloat16
  headrace inspect tale --for latency                          settings for a goal, each with its reason
  headrace inspect tale --program                              every op of a step, with its weights
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "inspect", "[options] [MODEL]", examples=EXAMPLES,
        summary="print spec, memory ledger, ops and settings with their reasons",
        description="Print a model's spec, where its memory goes, which implementation serves each op, and every "
        "setting with the reason for its value.",
    )  # fmt: skip
    add_model_argument(parser)
    parser.add_argument(
        "--program", action="store_true",
        help="print the ops of a step in order, with their buffers, weights, FLOPs and bytes, and nothing else",
    )  # fmt: skip
    add_goal_flag(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.build import find_tokenizer, survey
    from headrace.models.families import weight_names
    from headrace.ops.cpu_features import detect
    from headrace.plan.listing import program_rows
    from headrace.plan.report import report, table
    from headrace.program.lower import lower

    config = engine_config(args)
    settled = settled_for(args, config)
    if settled is not None:
        config = settled.config
    problem = None
    try:
        plan = survey(config)
    except DoesNotFit as error:
        plan, problem = survey(config, machine=_unlimited()), error
    if args.program:
        program = lower(plan.spec, weight_names(plan.spec), narrow=plan.resolved.kernels is not None)
        rows = program_rows(program, plan.resolved.memory_format, plan.resolved.block_size)
        print(table(rows, right=frozenset({len(rows[0]) - 2, len(rows[0]) - 1})))
        return 0
    print(detect().describe(), end="\n\n")
    if settled is not None:
        plan = replace(plan, resolved=_explained(plan.resolved, settled))
        print(settled.describe()[0], end="\n\n")
    tokenizer = _tokenizer_rows(find_tokenizer(config, plan.source))
    print(report(plan.spec, plan.resolved, plan.ledger, plan.ops.rows(), tokenizer), end="")
    if problem is not None:
        print(_shortage(plan), end="")
        raise problem
    return 0


def _explained(resolved: ResolvedConfig, settled: Settled) -> ResolvedConfig:
    """With the goal as the reason for what it settled."""
    reasons = {name: f"for {settled.goal}: {why}" for name, why in settled.reasons.items()}
    return replace(resolved, reasons=tuple(sorted((dict(resolved.reasons) | reasons).items())))


def _unlimited() -> Machine:
    """This machine with more memory than any model needs."""
    from headrace.plan.hardware import this_machine
    from headrace.plan.units import TIB

    return replace(this_machine(), memory_total=1024 * TIB, memory_available=1024 * TIB)


def _shortage(plan: Survey) -> str:
    """By how much the plan is too large for this machine, which formats are not, and which machine is large enough."""
    from headrace.plan.hardware_table import this_hardware
    from headrace.plan.report import table
    from headrace.plan.units import format_bytes, format_count
    from headrace.sim.planner.model import from_spec
    from headrace.sim.planner.overview import nearest_machine
    from headrace.sim.planner.speed import Traffic
    from headrace.sim.planner.tables import format_rows

    here, needed = this_hardware(), plan.ledger.total
    model = from_spec(plan.source.name, plan.spec)
    traffic = Traffic(max(1, min(SHORT, model.spec.max_position) - 1), 1)
    missing = format_bytes(max(0, needed - here.memory))
    lines = [
        (
            "needed",
            f"{format_bytes(needed)} as above; {format_bytes(here.memory)} is free, {missing} too little",
        )
    ]
    for row in format_rows(model, here, traffic):
        fits = f"fits with up to {format_count(row.context)} tokens" if row.context else "does not fit"
        needs = f"{format_bytes(row.needed)} with one sequence of {traffic.context} tokens"
        lines.append((f"in {row.label}", f"{needs}: {fits}"))
    near = nearest_machine(model, traffic)
    if near is not None:
        lines.append(
            ("large enough", f"{near.hardware.label}, in {near.stored.label}; see `headrace plan --help`")
        )
    return f"\nFit\n{table(lines)}\n"


def _tokenizer_rows(path: Path | None) -> list[tuple[str, str]]:
    from headrace.text.tokenizer_listing import tokenizer_rows
    from headrace.text.tokenizer_source import open_tokenizer

    if path is None:
        return []
    try:
        return tokenizer_rows(open_tokenizer(path))
    except (TokenizerError, CheckpointError) as error:  # the model can be planned without one
        return [("none", str(error))]
