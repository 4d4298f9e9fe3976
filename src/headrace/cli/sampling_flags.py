"""Sampling parameters as command line flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.core.params import SamplingParams

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "longest completion in tokens"),
    ("min_tokens", int, "shortest completion in tokens"),
    ("temperature", float, "0 is greedy"),
    ("top_k", int, "choose among the k most likely tokens"),
    ("top_p", float, "choose among the most likely tokens that make up this probability"),
    ("min_p", float, "leave out tokens less likely than this share of the most likely one"),
    ("repetition_penalty", float, "above 1 discourages tokens that occurred"),
    ("presence_penalty", float, "subtracted from the logit of every token put out before"),
    ("frequency_penalty", float, "subtracted once for each time a token was put out"),
    ("n", int, "completions of each prompt"),
)


def add_sampling_flags(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Add sampling flags; `defaults` hold where neither the caller nor the model says anything."""
    group = parser.add_argument_group("sampling")
    for name, kind, text in _NUMBERS:
        shown = text if name not in defaults else f"{text} (default: the model's, else {defaults[name]})"
        flag, metavar = "--" + name.replace("_", "-"), "N" if kind is int else "X"
        group.add_argument(flag, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=shown)
    parser.set_defaults(sampling_defaults=defaults)
    group.add_argument("--sampling-seed", type=int, metavar="N", help="the same seed gives the same tokens")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-sequence token")


def sampling_params(
    args: argparse.Namespace, model: Mapping[str, Any] = MappingProxyType({})
) -> SamplingParams:
    """What was given, then what the `model` recommends, then the command's defaults.

    Raises InvalidParams where a value is out of range.
    """
    given = {name: getattr(args, name) for name, _, _ in _NUMBERS if hasattr(args, name)}
    return SamplingParams(
        **{**args.sampling_defaults, **model, **given},
        seed=args.sampling_seed,
        stop=tuple(args.stop or ()),
        ignore_eos=args.ignore_eos,
    )
