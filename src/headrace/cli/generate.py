"""`headrace generate`: complete prompts from the command line, a file or standard input."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.cli.engine_flags import add_engine_flags, add_model_flag, engine_options
from headrace.cli.sampling_flags import add_sampling_flags, sampling_params
from headrace.cli.stream import print_stream
from headrace.errors import RequestError
from headrace.llm import LLM

EXAMPLES = """\
examples:
  headrace generate "Once upon a time"
  headrace generate "Tell me a story about a duck." --chat --temperature 0
  headrace generate --file prompts.txt --json --max-tokens 32
  headrace generate -m ./my-model "The capital of France is" --dtype bfloat16
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "generate", help="complete prompts", epilog=EXAMPLES,
        description="Complete one prompt, streamed, or several in one batch.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="text to complete; - reads standard input"
    )
    parser.add_argument("--file", type=Path, metavar="PATH", help="one prompt a line")
    parser.add_argument("--chat", action="store_true", help="wrap each prompt in the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    add_model_flag(parser)
    add_sampling_flags(parser, max_tokens=256, temperature=0.7)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    sampling_params(args)  # what is wrong is said before the model is loaded
    prompts = _prompts(args)
    llm = LLM(args.model, show_progress=sys.stderr.isatty(), **engine_options(args))
    params = sampling_params(args, llm.parts.sampling_defaults)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    if len(prompts) == 1 and params.n == 1 and not args.json:
        print_stream(llm.stream_chat(chats[0], params) if args.chat else llm.stream(prompts[0], params))
        return 0
    outputs = llm.chat(chats, params) if args.chat else llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        if args.json:
            print(json.dumps(asdict(output), ensure_ascii=False))
            continue
        for completion in output.outputs:
            print(f"> {prompt}\n{completion.text}\n")
    return 0


def _prompts(args: argparse.Namespace) -> list[str]:
    prompts = [sys.stdin.read() if prompt == "-" else prompt for prompt in args.prompts]
    if args.file is not None:
        try:
            prompts += args.file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"the prompt file {args.file} cannot be read: {error}") from None
    if not prompts:
        raise RequestError('there is no prompt: give one, such as headrace generate "Once upon a time"')
    return prompts
