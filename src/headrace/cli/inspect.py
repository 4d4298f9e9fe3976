"""`headrace inspect`: what a model is and what the engine would do with it, without loading its weights."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.cli.parser import add_command

EXAMPLES = """\
examples:
  headrace inspect                                             the bundled model
  headrace inspect shape:llama-3.1-8b --max-model-len 8192     would it fit here?
  headrace inspect ./my-model --kv-cache-memory 2GB --dtype bfloat16
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "inspect", "[options] [MODEL]", examples=EXAMPLES,
        summary="print spec, memory ledger, ops and settings with their reasons",
        description="Print a model's spec, where its memory goes, which implementation serves each op, and every "
        "setting with the reason for its value.",
    )  # fmt: skip
    add_model_argument(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.build import survey
    from headrace.ops.cpu_features import detect
    from headrace.plan.report import report

    plan = survey(engine_config(args))
    print(detect().describe(), end="\n\n")
    print(report(plan.spec, plan.resolved, plan.ledger, plan.ops.rows()), end="")
    return 0
