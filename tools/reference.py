"""Writes docs/reference.md: every option, flag, sampling parameter and environment variable, read from the code.

python -m tools.reference
"""

from __future__ import annotations

import argparse
import enum
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from headrace import config
from headrace.cli import COMMANDS
from headrace.core import params
from headrace.text.tools.formats import TOOL_CALL_FORMATS
from headrace.text.tools.reasoning import REASONING_FORMATS

TARGET = Path(__file__).parents[1] / "docs" / "reference.md"

HEAD = """\
# Configuration reference

Written from the code by `python -m tools.reference`; a test compares this page with the code. What the options do
together is in [serving.md](serving.md), [quantization.md](quantization.md) and [options.md](options.md).
`headrace inspect` prints the value of each engine option for one model and machine, with the reason for it.
"""

SAMPLING: Mapping[str, str] = {
    "n": "completions of one prompt; they share the prompt's KV blocks",
    "temperature": "divides the logits; 0 is greedy",
    "top_k": "keep the k most likely tokens; 0 or -1 is off",
    "top_p": "keep the most likely tokens that together have this probability; 1 is off",
    "min_p": "drop tokens less likely than this share of the most likely one; 0 is off",
    "repetition_penalty": "above 1: tokens of the prompt or output become less likely (Keskar et al. 2019)",
    "presence_penalty": "subtracted from the logit of each token that is in the output (OpenAI)",
    "frequency_penalty": "subtracted once for each time that the token is in the output (OpenAI)",
    "logit_bias": "token id to a number that is added to its logit",
    "allowed_token_ids": "only these tokens may be chosen",
    "banned_token_ids": "these tokens are never chosen",
    "bad_words": "words, or lists of token ids, that must not occur in the output",
    "seed": "the same seed gives the same tokens in any batch; None: from the engine's seed and the request's id",
    "max_tokens": "longest output; None is up to the model's length, 0 computes the prompt only",
    "min_tokens": "no end of sequence or stop token before this many tokens",
    "stop": "strings that end the output",
    "stop_token_ids": "tokens that end the output, besides the model's end-of-sequence ids",
    "include_stop_str_in_output": "keep the stop string in the text",
    "ignore_eos": "continue after an end-of-sequence token",
    "logprobs": "return this many alternatives at each output position; 0 returns the chosen token's only",
    "prompt_logprobs": "the same for the positions of the prompt",
    "skip_special_tokens": "leave special tokens out of the text",
    "grammar": "what the output must match, see [structured-output.md](structured-output.md)",
    "output_kind": "what each result of a stream holds: `cumulative`, `delta` or `final_only`, see "
    "[python-api.md](python-api.md); not a field of HTTP requests",
}

ENVIRONMENT: Mapping[str, str] = {
    "HEADRACE_API_KEY": "`headrace serve`: one more API key, with all rights; then removed from the environment",
    "HEADRACE_NATIVE": "installation: `OFF` builds no C++ kernels",
    "HEADRACE_KERNELS": "installation: `all` builds the kernels of every CPU, which is the default of pip; `this-cpu` "
    "the best ones of this machine, as `make demo` and `make serve` do",
    "HF_ENDPOINT": "address of the hub, where it is not Hugging Face's own",
    "HF_HOME": "where Hugging Face keeps its cache; the hub's models are below it",
    "HF_HUB_CACHE": "folder of downloaded models, before `HF_HOME`",
    "HF_HUB_OFFLINE": "`1`: no download; models of the hub come from the cache",
    "HUGGINGFACE_HUB_CACHE": "the older name of `HF_HUB_CACHE`",
    "NO_COLOR": "`headrace chat`: any value, and the prompt has no colour",
    "OPENAI_API_KEY": "`headrace bench serve`: the key that is sent where `--api-key` is not given",
    "OTEL_SERVICE_NAME": "the service name of traces (default: `headrace`); the other `OTEL_…` variables apply as well",
    "TERM": "`headrace chat`: `dumb`, or none, and the prompt has no colour",
    "XDG_CACHE_HOME": "folder of caches; without `HF_HOME`, Hugging Face's is in it (default: `~/.cache`)",
}


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([HEAD, *_engine(), *_sampling(), *_formats(), *_commands(), *_environment()])


def main() -> None:
    TARGET.write_text(page(), encoding="utf-8")


def _engine() -> Iterator[str]:
    meanings = {action.dest: _help(action) for action in _actions("inspect")}
    yield "## Engine options"
    yield ""
    yield "Keyword arguments of `LLM`, and flags of every command that loads a model: `max_model_len` is"
    yield "`--max-model-len`, and a switch such as `enable_prefix_caching` has `--no-enable-prefix-caching`."
    yield "`auto` and `None` are resolved for the model and the machine. vLLM's other options:"
    yield "[options.md](options.md)."
    yield ""
    ranges: dict[str, tuple[float, float]] = {
        **config._INT_RANGES,
        "batch_wait_s": (0.0, config.MAX_WAIT_S),
        "stream_interval_s": (0.0, config.MAX_INTERVAL_S),
    }
    rows = []
    for field in fields(config.EngineConfig):
        allowed = _range(ranges.get(field.name), config._CHOICES.get(field.name))
        default = "required" if field.name == "model" else _code(field.default)
        text = meanings[field.name].removesuffix(" (default: tale)")
        rows.append((_code_text(field.name), default, allowed, text))
    yield from _table(("option", "default", "allowed", "meaning"), rows)


def _sampling() -> Iterator[str]:
    ranges: dict[str, tuple[float, float]] = {
        **params._FLOAT_RANGES,
        **params._INT_RANGES,
        **params._OPTIONAL_INTS,
    }
    yield "## Sampling parameters"
    yield ""
    yield "Fields of `SamplingParams`, with vLLM's names and meanings. The same names are fields of HTTP requests"
    yield "([serving.md](serving.md#fields-of-requests)). A value outside of its range raises `InvalidParams`."
    yield ""
    rows = [
        (
            _code_text(field.name),
            _code(field.default),
            _range(ranges.get(field.name), None),
            SAMPLING[field.name],
        )
        for field in fields(params.SamplingParams)
    ]
    yield from _table(("field", "default", "allowed", "meaning"), rows)


def _formats() -> Iterator[str]:
    yield "## Formats of tool calls and reasoning"
    yield ""
    yield "How models write calls and mark reasoning: the names for `--tool-call-parser` and `--reasoning-parser`,"
    yield "which are vLLM's where it has the format. `auto` takes the first format that the chat template shows. What"
    yield "the server makes of them is in [serving.md](serving.md#tools)."
    yield ""
    calls = [
        (_code_text(one.name), one.families, _code_text(one.looks)) for one in TOOL_CALL_FORMATS.values()
    ]
    yield from _table(("`--tool-call-parser`", "models", "a call"), calls)
    marks = [
        (
            _code_text(one.name),
            one.families + ("; without marks, an answer starts as reasoning" if one.assumed else ""),
            " or ".join(_code_text("…".join(pair)) for pair in zip(one.opens, one.closes, strict=True)),
        )
        for one in REASONING_FORMATS.values()
    ]
    yield from _table(("`--reasoning-parser`", "models", "reasoning"), marks)


def _commands() -> Iterator[str]:
    options = {field.name for field in fields(config.EngineConfig)} - {"model"}
    for words, command in _parsers(parser()):
        yield f"## headrace {words}"
        yield ""
        if command.description:
            yield _escaped(" ".join(command.description.split()))
            yield ""
        shown = [one for one in command._actions if one.help != argparse.SUPPRESS and one.dest != "help"]
        takes_options = options <= {one.dest for one in shown}
        rows = [
            (_flag(one), _help(one))
            for one in shown
            if not (takes_options and one.dest in options) and not _is_choice_of_commands(one)
        ]
        if rows:
            yield from _table(("argument", "meaning"), rows)
        if takes_options:
            yield "It takes the [engine options](#engine-options) as well."
            yield ""


def _environment() -> Iterator[str]:
    yield "## Environment variables"
    yield ""
    yield from _table(
        ("variable", "meaning"), [(_code_text(name), text) for name, text in ENVIRONMENT.items()]
    )


def parser() -> argparse.ArgumentParser:
    """The command line with all subcommands that users see."""
    root = argparse.ArgumentParser(prog="headrace")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers()
    for command in COMMANDS:
        if command.summary is not None:
            importlib.import_module(command.module).add_parser(commands)
    return root


def _parsers(of: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each subcommand, then what is below it (the kinds of `bench`), with the words that call it."""
    for action in of._actions:
        if _is_choice_of_commands(action) and isinstance(action.choices, Mapping):
            for name, nested in action.choices.items():
                yield f"{words} {name}".strip(), nested
                yield from _parsers(nested, f"{words} {name}")


def _actions(words: str) -> Iterable[argparse.Action]:
    return next(command._actions for name, command in _parsers(parser()) if name == words)


def _is_choice_of_commands(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _flag(action: argparse.Action) -> str:
    """`-m`, `--model MODEL`; a positional argument by its name."""
    value = action.metavar if isinstance(action.metavar, str) else None
    if value is None and action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if isinstance(action.metavar, tuple):
        value = " ".join(action.metavar)
    if not action.option_strings:
        return _code_text(value or action.dest)
    takes = action.nargs != 0
    if isinstance(action, argparse.BooleanOptionalAction):
        takes = False
    value = (value or action.dest.upper()) if takes else ""
    if action.nargs in ("+", "*"):
        value += " …"
    return ", ".join(_code_text(f"{one} {value}".strip()) for one in action.option_strings)


def _help(action: argparse.Action) -> str:
    return _escaped(" ".join(((action.help or "") % {**vars(action), "prog": "headrace"}).split()))


def _range(numbers: tuple[float, float] | None, choices: tuple[str, ...] | None) -> str:
    if choices is not None:
        return ", ".join(map(_code_text, choices))
    return "" if numbers is None else f"{_number(numbers[0])} to {_number(numbers[1])}"


def _number(value: float) -> str:
    size = abs(value)
    if size >= 2**20 and isinstance(value, int):
        for near, text in ((size, ""), (size + 1, " - 1")):
            if near & (near - 1) == 0:
                power = f"2^{near.bit_length() - 1}{text}"
                return power if value > 0 else f"-({power})" if text else f"-{power}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _code(value: object) -> str:
    value = value.value if isinstance(value, enum.Enum) else value
    return _code_text("()" if value == () else repr(value).replace("'", '"'))


def _code_text(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


if __name__ == "__main__":
    main()
