"""`headrace inspect`: what a model is and what the engine would do with it, without loading its weights."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.build import survey
from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.ops.cpu_features import detect
from headrace.plan.report import report

EXAMPLES = """\
examples:
  headrace inspect                                             the bundled model
  headrace inspect shape:llama-3.1-8b --max-model-len 8192     would it fit here?
  headrace inspect ./my-model --kv-cache-memory 2GB --dtype bfloat16
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect", help="print spec, memory ledger, ops and settings with their reasons", epilog=EXAMPLES,
        description="Print a model's spec, where its memory goes, which implementation serves each op, and every "
        "setting with the reason for its value.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_model_argument(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    plan = survey(engine_config(args))
    print(detect().describe(), end="\n\n")
    print(report(plan.spec, plan.resolved, plan.ledger, plan.ops.rows()), end="")
    return 0
