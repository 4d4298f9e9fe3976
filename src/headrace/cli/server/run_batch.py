"""`headrace run-batch`: a file of requests answered offline, in OpenAI's batch format."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, add_model_flag, engine_config
from headrace.cli.parser import add_command, check_range, needs_extra, restore_interrupts
from headrace.cli.server.flags import add_reply_flags, served_names
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from tqdm import tqdm

    from headrace.server.batch.work import Progress

EXAMPLES = """\
examples:
  headrace run-batch in.jsonl out.jsonl                       with the bundled model
  headrace run-batch in.jsonl out.jsonl -m ./my-model --served-model-name my-model --max-num-seqs 64
  headrace run-batch in.jsonl out.jsonl                       again, after a kill: answers the rest

A line of the input is a request, and becomes a line of the output, in the order in which the answers come:
  {"custom_id": "1", "method": "POST", "url": "/v1/completions",
   "body": {"model": "tale", "prompt": "Once upon a time", "max_tokens": 20}}
  {"id": "batch_req_…", "custom_id": "1", "error": null,
   "response": {"status_code": 200, "request_id": "cmpl-…", "body": {…}}}
"""

_QUIET_S = 10.0


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "run-batch", "[options] IN OUT", summary="answer a file of requests", examples=EXAMPLES,
        description="Answer the requests of a file in OpenAI's batch format, with the routes of the server but "
        "without HTTP. Answers are appended as they come, so that a run that was killed can be continued: run it "
        "again. Lines that cannot be answered become error entries. The exit code is 1 unless every line has an "
        "answer with status 200.",
    )  # fmt: skip
    parser.add_argument("input", type=Path, metavar="IN", help="requests, one JSON object a line")
    parser.add_argument("output", type=Path, metavar="OUT", help="answers; those that are there already stay")
    add_model_flag(parser)
    group = parser.add_argument_group("batch")
    group.add_argument(
        "--served-model-name", nargs="+", default=[], metavar="NAME",
        help="what requests may call the model (default: the model's name)",
    )  # fmt: skip
    group.add_argument(
        "--concurrency", type=int, metavar="N",
        help="requests at a time (default: twice as many as the engine runs at once)",
    )  # fmt: skip
    group.add_argument("--overwrite", action="store_true", help="answer every request again and replace OUT")
    group.add_argument(
        "--pooling", default="last", choices=("last", "mean"),
        help="how embeddings are made, where a request does not say (default: %(default)s)",
    )  # fmt: skip
    add_reply_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for files that cannot be used, and ModelError where the model cannot be loaded."""
    from headrace.core.types import Pooling

    if "-" in (str(args.input), str(args.output)):
        raise ConfigError(
            "- is not a file: a batch that was stopped continues with its files, so give their names"
        )
    config = engine_config(args)
    with needs_extra("server", "headrace run-batch"):
        from headrace.server.batch.run import MAX_CONCURRENCY, BatchOptions
        from headrace.server.batch.run import run as run_all
    restore_interrupts()
    check_range("concurrency", args.concurrency, 1, MAX_CONCURRENCY)
    options = BatchOptions(
        args.input, args.output, served_names(args), args.concurrency, args.overwrite,
        Pooling(args.pooling), args.tool_call_parser, args.reasoning_parser,
    )  # fmt: skip
    bar = _Bar() if sys.stderr.isatty() else _Lines()
    began = time.monotonic()
    try:
        progress = run_all(config, options, bar.show)
    finally:
        bar.close()
    spent = time.monotonic() - began
    failed_before = f" ({progress.failed_before} failed)" if progress.failed_before else ""
    before = f", {progress.before} were there before{failed_before}" if progress.before else ""
    unanswered = f", {progress.unanswered} left without an answer" if progress.unanswered else ""
    print(
        f"headrace: {progress.total} requests: {progress.answered} answered, {progress.failed} failed{unanswered}"
        f"{before}; {progress.tokens} tokens in {spent:.1f} s; {args.output}"
    )
    return 0 if progress.complete else 1


class _Bar:
    """For people who watch."""

    def __init__(self) -> None:
        self._bar: tqdm[object] | None = None
        self._began = time.monotonic()

    def show(self, progress: Progress) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._began = time.monotonic()
            self._bar = tqdm(total=progress.total, initial=progress.before, unit="req", desc="batch")
        speed = progress.tokens / max(1e-9, time.monotonic() - self._began)
        self._bar.set_postfix_str(f"{progress.failed} failed, {speed:.0f} tok/s", refresh=False)
        self._bar.update(progress.ended - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Lines:
    """For logs: a line now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._last >= _QUIET_S:
            self._last = time.monotonic()
            print(
                f"headrace: {progress.ended} of {progress.total} requests, {progress.failed} failed",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def close(self) -> None:
        """Nothing is left open."""
