"""`headrace generate`: complete prompts from the command line, a file or standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.cli.engine_flags import add_engine_flags, add_model_flag, engine_options
from headrace.cli.parser import add_command
from headrace.cli.text.completions import (
    add_sampling_flags,
    as_utf8,
    check_completed,
    check_text_model,
    print_stream,
    sampling_params,
)
from headrace.errors import RequestError
from headrace.gguf.reader import begins_as_gguf

EXAMPLES = """\
examples:
  headrace generate "Once upon a time"
  headrace generate "Tell me a story about a duck." --chat --temperature 0
  headrace generate --file prompts.txt --json --max-tokens 32
  headrace generate -m ./my-model "The capital of France is" --dtype bfloat16
  echo "Once upon a time" | headrace generate
"""

STDIN = "-"


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "generate", "[options] [PROMPT ...]", summary="complete prompts", examples=EXAMPLES,
        description="Complete one prompt, streamed, or several in one batch.",
    )  # fmt: skip
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT",
        help="text to complete; - reads standard input, as no prompt does where that is a pipe or a file",
    )  # fmt: skip
    parser.add_argument("--file", metavar="PATH", help="one prompt a line; - is standard input")
    parser.add_argument("--chat", action="store_true", help="wrap each prompt in the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    add_model_flag(parser)
    add_sampling_flags(parser, max_tokens=256, temperature=0.7)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.llm import LLM

    sampling_params(args)  # wrong values are refused before the model is loaded
    prompts = _prompts(args)
    _refuse_model(args.prompts)
    options = engine_options(args)
    check_text_model(args.model, options, chat=args.chat)
    llm = LLM(args.model, show_progress=True, **options)
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
    check_completed(outputs)
    return 0


def _refuse_model(prompts: Sequence[str]) -> None:
    """A model's file as the first prompt is meant as the model, as the other commands take it."""
    first = Path(prompts[0]) if prompts else None
    with suppress(OSError, ValueError):  # text that is not a path
        if first is not None and (begins_as_gguf(first) or (first / "config.json").is_file()):
            raise RequestError(f"{first} is a model, and not text to complete: give it with --model")


def _prompts(args: argparse.Namespace) -> list[str]:
    given = list(args.prompts)
    if not given and args.file is None and not sys.stdin.isatty():
        given = [STDIN]
    if [*given, args.file].count(STDIN) > 1:
        raise RequestError("standard input can be read only once: give - only once")
    # echo and here-documents add a newline that is not part of the prompt.
    prompts = [
        _read(STDIN).removesuffix("\n") if prompt == STDIN else as_utf8(prompt, "the prompt")
        for prompt in given
    ]
    if args.file is not None:
        prompts += [line for line in _read(args.file).split("\n") if line.strip()]
    if not prompts or prompts == [""]:
        raise RequestError('there is no prompt: give one, such as `headrace generate "Once upon a time"`')
    return prompts


def _read(source: str) -> str:
    """The text, with newlines as \\n and without a byte-order mark. Not in Python's text mode: a lone \\r stays."""
    try:
        if source == STDIN:
            read = sys.stdin.buffer.read()
        else:
            with open(source, "rb") as file:  # Path("") would be the current folder
                read = file.read()
        return read.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        where = "standard input" if source == STDIN else f"the prompt file {source or repr(source)}"
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RequestError(f"{where} cannot be read: {why}") from None
