"""`headrace chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from headrace.cli.engine_flags import add_engine_flags, add_model_argument, engine_options
from headrace.cli.parser import add_command, typed
from headrace.cli.text.completions import (
    add_sampling_flags,
    as_utf8,
    check_text_model,
    print_stream,
    sampling_params,
)
from headrace.core.params import SamplingParams
from headrace.errors import HeadraceError, PromptTooLong, RequestError

if TYPE_CHECKING:
    from headrace.llm import LLM, RequestOutput

try:
    import readline  # line editing and history for input()
except ImportError:  # not on every platform; input() works without
    readline = None  # type: ignore[assignment]

EXAMPLES = """\
examples:
  headrace chat
  headrace chat ./my-model --system "Answer in one sentence." --temperature 0.3

inside the chat:
  /help         this list
  /reset        forget the conversation
  /retry        another answer
  /system TEXT  set system prompt, reset
  /set NAME X   change temperature,
                top_p, max_tokens, …
  /stats        prefix cache and engine
  /exit         leave (also Ctrl-D)
  Ctrl-C        stop an answer, keep it
"""
HELP = EXAMPLES.split("inside the chat:\n")[1].rstrip("\n")  # at most 40 columns wide


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "chat", "[options] [MODEL]", summary="talk to a model in the terminal", examples=EXAMPLES,
        description="Talk to a model; answers stream, and each turn reuses the KV of the turns before.",
    )  # fmt: skip
    add_model_argument(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    add_sampling_flags(parser, without="n", temperature=0.7, max_tokens=512)
    parser.add_argument("--n", type=_one, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add_engine_flags(parser)


def _one(text: str) -> int:
    if text.strip() != "1":
        raise argparse.ArgumentTypeError(
            "a chat has one answer to each message; `generate --chat --n N` prints several"
        )
    return 1


def run(args: argparse.Namespace) -> int:
    from headrace.llm import LLM

    sampling_params(args)  # wrong values are refused before the model is loaded
    options = engine_options(args)
    check_text_model(args.model, options, chat=True)
    llm = LLM(args.model, show_progress=True, **options)
    params = sampling_params(args, llm.parts.sampling_defaults)
    chat = Chat(llm, params, args.system)
    if sys.stdin.isatty():
        print(f"{args.model}: ask away; /help lists commands, Ctrl-D leaves.", file=_talk())
    while True:
        try:
            line = input(_prompt()).strip()
        except EOFError:
            print(file=_talk())
            return 0
        except KeyboardInterrupt:
            print(file=_talk())
            continue
        if line.partition(" ")[0] in ("/exit", "/quit"):
            return 0
        if line:
            try:
                chat.handle(as_utf8(line, "the message"))
            except HeadraceError as error:
                print(f"error: {typed(str(error))}", file=sys.stderr)


class Chat:
    """The conversation so far, and the commands on it."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/reset": self._reset, "/retry": self._retry, "/system": self._set_system, "/set": self._set,
            "/stats": self._stats, "/help": lambda _: print(HELP),
        }  # fmt: skip

    def handle(self, line: str) -> None:
        """Answer a message or run a command. Raises RequestError where that is impossible."""
        if not line.startswith("/"):
            self._answer(self._turns, line)
            return
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            raise RequestError(f"there is no command {name}; /help lists them")
        self._commands[name](rest.strip())

    def _answer(self, before: list[dict[str, str]], text: str) -> None:
        """Answer a message after these turns. The conversation is changed once the answer is there."""
        turns = [*before, {"role": "user", "content": text}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        try:
            with interruptible() as stop:
                output = print_stream(until(stop, self._llm.stream_chat([*system, *turns], self._params)))
        except PromptTooLong:
            if not before:
                raise
            raise PromptTooLong(
                "the conversation is longer than the model's context: /reset starts a new one"
            ) from None
        self._turns = [*turns, {"role": "assistant", "content": output.outputs[0].text}]

    def _retry(self, rest: str) -> None:
        if not self._turns:
            raise RequestError("there is nothing to retry yet")
        self._answer(self._turns[:-2], self._turns[-2]["content"])

    def _reset(self, rest: str) -> None:
        self._turns = []
        print("[conversation forgotten]")

    def _set_system(self, rest: str) -> None:
        self._system = rest or None
        self._reset(rest)

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        kinds: dict[str, type] = {
            "temperature": float, "top_p": float, "min_p": float, "top_k": int, "max_tokens": int, "seed": int,
            "repetition_penalty": float,
        }  # fmt: skip
        if name not in kinds:
            raise RequestError(f"/set knows {', '.join(kinds)}")
        try:
            self._params = replace(self._params, **{name: kinds[name](value)})
        except ValueError:
            kind = "a whole number" if kinds[name] is int else "a number"
            raise RequestError(f"{name} must be {kind}, got {value!r:.40}") from None
        print(f"[{name} = {value}]")

    def _stats(self, rest: str) -> None:
        stats = self._llm.stats()
        print(f"[{stats.scheduler.output_tokens} tokens in {stats.scheduler.steps} steps", end="")
        if stats.cache is not None and stats.cache.queries:
            print(f"; prefix cache: {stats.cache.hits / stats.cache.queries:.0%} of prompt tokens", end="")
        print(f"; {stats.total_blocks - stats.free_blocks} of {stats.total_blocks} KV blocks held]")


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of raising, so that the answer so far is kept."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def until(stop: threading.Event, outputs: Generator[RequestOutput, None, None]) -> Iterator[RequestOutput]:
    """The outputs up to the moment when `stop` is set; closing the source aborts the request."""
    with closing(outputs):
        for output in outputs:
            yield output
            if stop.is_set():
                print(" [stopped]", end="", file=sys.stderr)
                return


def _talk() -> TextIO:
    """Where the prompt is shown: standard output, or standard error while answers go to a file or a pipe."""
    return sys.stdout if sys.stdout.isatty() or not sys.stdin.isatty() else sys.stderr


def _prompt() -> str:
    if not sys.stdin.isatty():
        return ""
    if not sys.stdout.isatty():  # input() would write its prompt there
        print("you> ", end="", file=sys.stderr, flush=True)
        return ""
    if readline is None or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return "you> "
    # readline must know which characters take no room, or long lines wrap wrongly.
    return "\001\033[1;36m\002you>\001\033[0m\002 "
