"""`headrace inspect`: what a model is and what the engine would do with it, without loading its weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_config
from headrace.cli.parser import add_command
from headrace.errors import TokenizerError

EXAMPLES = """\
examples:
  headrace inspect                                             the bundled model
  headrace inspect shape:llama-3.1-8b --max-model-len 8192     would it fit here?
  headrace inspect ./my-model --kv-cache-memory 2GB --dtype bfloat16
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
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.build import find_tokenizer, survey
    from headrace.models.families import weight_names
    from headrace.ops.cpu_features import detect
    from headrace.plan.listing import program_rows
    from headrace.plan.report import report, table
    from headrace.program.lower import lower

    config = engine_config(args)
    plan = survey(config)
    if args.program:
        program = lower(plan.spec, weight_names(plan.spec), narrow=plan.resolved.kernels is not None)
        rows = program_rows(program, plan.resolved.memory_format)
        print(table(rows, right=frozenset({len(rows[0]) - 2, len(rows[0]) - 1})))
        return 0
    print(detect().describe(), end="\n\n")
    tokenizer = _tokenizer_rows(find_tokenizer(config, plan.source))
    print(report(plan.spec, plan.resolved, plan.ledger, plan.ops.rows(), tokenizer), end="")
    return 0


def _tokenizer_rows(path: Path | None) -> list[tuple[str, str]]:
    from headrace.text.tokenizer_listing import tokenizer_rows
    from headrace.text.tokenizer_source import open_tokenizer

    if path is None:
        return []
    try:
        return tokenizer_rows(open_tokenizer(path))
    except TokenizerError as error:  # the model can be planned without one
        return [("none", str(error))]
