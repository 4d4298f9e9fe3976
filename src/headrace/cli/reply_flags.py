"""Options of `headrace serve` that say how the model writes tool calls and reasoning."""

from __future__ import annotations

import argparse

AUTO = "auto"

# As in `headrace.text.tools.formats`, which takes longer to import than a start should.
TOOL_CALL_PARSERS = (AUTO, "mistral", "hermes", "llama3_json", "pythonic", "none")
REASONING_PARSERS = (AUTO, "qwen3", "deepseek_r1", "mistral", "none")


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
