"""What `generate` and `chat` share: sampling flags, a check before the model is loaded, and printing as text grows."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.errors import HeadraceError, RequestError, TokenizerError
from headrace.plan.units import milliseconds

if TYPE_CHECKING:
    from headrace.llm import RequestOutput

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "longest completion in tokens"),
    ("min_tokens", int, "shortest completion in tokens"),
    ("temperature", float, "0 is greedy"),
    ("top_k", int, "choose among the k most likely tokens"),
    ("top_p", float, "choose among the most likely tokens that make up this probability"),
    ("min_p", float, "leave out tokens less likely than this share of the most likely one"),
    ("repetition_penalty", float, "above 1 discourages tokens that occurred"),
    ("presence_penalty", float, "subtracted from the logit of every token in the output"),
    ("frequency_penalty", float, "subtracted once for each time that a token is in the output"),
    ("n", int, "completions of each prompt"),
)


def add_sampling_flags(
    parser: argparse.ArgumentParser, *, without: str | None = None, **defaults: object
) -> None:
    """Add all sampling flags except `without`; `defaults` apply if neither the caller nor the model gives a value."""
    group = parser.add_argument_group("sampling")
    for name, kind, text in _NUMBERS:
        if name == without:
            continue
        shown = text if name not in defaults else f"{text} (default: the model's, else {defaults[name]})"
        flag, metavar = "--" + name.replace("_", "-"), "N" if kind is int else "X"
        group.add_argument(flag, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=shown)
    parser.set_defaults(sampling_defaults=defaults)
    group.add_argument("--sampling-seed", type=int, metavar="N", help="the same seed gives the same tokens")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="continue after the end-of-sequence token")


def sampling_params(
    args: argparse.Namespace, model: Mapping[str, Any] = MappingProxyType({})
) -> SamplingParams:
    """The flags, then the sampling defaults of the `model`, then those of the command.

    Raises InvalidParams where a value is out of range.
    """
    given = {name: getattr(args, name) for name, _, _ in _NUMBERS if hasattr(args, name)}
    return SamplingParams(
        **{**args.sampling_defaults, **model, **given},
        seed=args.sampling_seed,
        stop=tuple(args.stop or ()),
        ignore_eos=args.ignore_eos,
    )


def as_utf8(given: str, what: str) -> str:
    """Text of an argument or of standard input, which is UTF-8 whatever the locale is. Raises RequestError."""
    try:
        return given.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        raise RequestError(f"{what} is not UTF-8 text") from None


def check_text_model(model: str, options: Mapping[str, object], *, chat: bool) -> None:
    """Refuse, before weights are read, a model that takes no text, or no chats, also for its chat template.

    Raises TokenizerError, and ModelError or ConfigError for a model or an option that cannot be used.
    """
    from headrace.build import find_tokenizer, survey
    from headrace.text.tokenizer_source import open_settings

    config = EngineConfig.from_kwargs(model=model, **options)
    folder = find_tokenizer(config, survey(config).source)
    if folder is None:
        raise TokenizerError(
            f"{model} has random weights and no tokenizer: it can be measured, not prompted "
            f"(`headrace bench latency -m {shlex.quote(model)}`)"
        )
    if not chat:
        return
    from headrace.text.templates.trial import tried

    files = open_settings(folder)
    if "default" not in files.chat_templates:
        raise TokenizerError(
            f"{model} has no chat template, so it is probably a base model: complete text with "
            f'`headrace generate -m {shlex.quote(model)} "Once upon a time"`, or use the instruction-tuned version'
        )
    tried(files.chat_templates["default"], files.tokens)


def print_stream(outputs: Iterator[RequestOutput]) -> RequestOutput:
    """Print the text of the first completion as it grows, then a line of numbers; returns the final result.

    Raises HeadraceError where the completion failed.
    """
    shown = 0
    last: RequestOutput | None = None
    for last in outputs:
        text = last.outputs[0].text
        print(text[shown:], end="", flush=True)
        shown = len(text)
    print()
    if last is None:
        raise RuntimeError("the engine ended a request without a result")
    print(numbers_line(last), file=sys.stderr)
    check_completed([last])
    return last


def check_completed(outputs: Iterable[RequestOutput]) -> None:
    """Raise HeadraceError with the first reason where completions failed."""
    reasons = [one.error for output in outputs for one in output.outputs if one.finish_reason == "error"]
    if reasons:
        failed = "the completion" if len(reasons) == 1 else f"{len(reasons)} completions"
        raise HeadraceError(f"the engine failed on {failed}: {reasons[0] or 'it gave no reason'}")


def numbers_line(output: RequestOutput) -> str:
    """Tokens, speed and times of one finished request, in one line."""
    metrics = output.metrics
    parts = [f"{metrics.num_output_tokens} tokens"]
    if metrics.tpot_s:
        parts.append(f"{1 / metrics.tpot_s:.0f} tok/s")
    if metrics.ttft_s is not None:
        parts.append(f"first after {milliseconds(metrics.ttft_s)}")
    if metrics.num_cached_tokens:
        parts.append(f"{metrics.num_cached_tokens} of {metrics.num_prompt_tokens} prompt tokens cached")
    reason = output.outputs[0].finish_reason
    if reason:
        parts.append(f"ended by {reason}")
    return f"[{', '.join(parts)}]"
