"""Flags of the requests to send, to a server or in a simulation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.cli.parser import add_number
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.sim.workload.sessions import Lengths, Workload

MAX_REQUESTS = 1_000_000
MAX_TURNS = 1000
DATASETS = ("sharegpt", "random", "prefix_repetition", "multi_turn")


def add_workload_flags(group: argparse._ActionsContainer, num_prompts: int | None = 100) -> None:
    """How many requests there are, and their lengths."""
    group.add_argument(
        "--dataset-name", choices=DATASETS, default="sharegpt",
        help="lengths as in shared chats, all the same, after shared prefixes, or of turns (default: %(default)s)",
    )  # fmt: skip
    add_number(group, "--num-prompts", num_prompts, "requests, or conversations, of each rate")
    add_number(group, "--input-len", None, "about so many prompt tokens each (random: 128)")
    add_number(group, "--output-len", None, "at most so many output tokens each (random: 64)")
    add_number(group, "--prefix-len", 256, "of prefix_repetition")
    add_number(group, "--num-prefixes", 4, "of prefix_repetition")
    add_number(group, "--num-turns", 4, "of multi_turn")


def add_burst_flags(group: argparse._ActionsContainer) -> None:
    """How arrivals depart from a Poisson process."""
    shape = "shape of the gaps' gamma distribution: 1 Poisson, below 1 burstier, above more regular"
    add_number(group, "--burstiness", 1.0, shape, "G", float)
    add_number(group, "--burst-size", 1, "requests sent together")


def check_workload(args: argparse.Namespace) -> None:
    """Raises ConfigError for a number that is out of range."""
    from headrace.sim.workload.arrivals import MAX_RATE
    from headrace.sim.workload.sessions import MAX_LEN

    limits = {
        "num_prompts": MAX_REQUESTS, "burst_size": MAX_REQUESTS, "num_turns": MAX_TURNS, "num_prefixes": MAX_REQUESTS,
        "input_len": MAX_LEN, "output_len": MAX_LEN, "prefix_len": MAX_LEN,
    }  # fmt: skip
    for name, most in limits.items():
        value = getattr(args, name)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"--{name.replace('_', '-')} must be between 1 and {most}, got {value}")
    if not 1e-3 <= args.burstiness <= MAX_RATE:
        raise ConfigError(f"--burstiness must be between 0.001 and {MAX_RATE:g}, got {args.burstiness}")


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload that the flags describe."""
    from headrace.sim.workload.sessions import SHAREGPT_INPUT, SHAREGPT_OUTPUT, Lengths, Workload

    fixed = args.dataset_name == "random"
    inputs, outputs = SHAREGPT_INPUT, SHAREGPT_OUTPUT
    if args.input_len is not None or fixed:
        inputs = Lengths.fixed(args.input_len or 128)
    if args.output_len is not None or fixed:
        outputs = Lengths.fixed(args.output_len or 64)
    if args.dataset_name == "prefix_repetition":
        return Workload(inputs, outputs, prefixes=args.num_prefixes, prefix_tokens=args.prefix_len)
    return Workload(inputs, outputs, turns=args.num_turns if args.dataset_name == "multi_turn" else 1)


def describe_lengths(workload: Workload) -> str:
    """A workload in words."""
    parts = [
        f"{what} of {lengths.high} tokens" if lengths.sigma == 0 else
        f"{what} of {lengths.low} to {lengths.high} tokens, lognormal (median {lengths.median:g}, "
        f"sigma {lengths.sigma:g})"
        for what, lengths in (("prompts", workload.inputs), ("outputs", workload.outputs))
    ]  # fmt: skip
    if workload.prefixes:
        parts.append(f"{workload.prefixes} shared prefixes of {workload.prefix_tokens} tokens")
    if workload.turns > 1:
        parts.append(f"{workload.turns} turns")
    return ", ".join(parts)


def described(lengths: Lengths) -> dict[str, float]:
    """Lengths as plain values."""
    return {name: getattr(lengths, name) for name in ("median", "sigma", "low", "high")}
