"""The option `--for`: settings that follow from a goal, by simulation on this machine's profile."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.cli.engine_flags import engine_options
from headrace.config import EngineConfig

if TYPE_CHECKING:
    from headrace.plan.hardware import Hardware
    from headrace.sim.profile import Profile
    from headrace.sim.tuning.settle import Settled


def add_goal_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="goal", metavar="GOAL",
        help="settle batch, steps, KV type and speculation for latency, throughput, or times in seconds that 90 %% of "
        "requests keep, such as ttft=0.3,tpot=0.03, by simulation on the profile of `headrace calibrate`; options that "
        "are given stay",
    )  # fmt: skip


def settled_for(args: argparse.Namespace, config: EngineConfig) -> Settled | None:
    """The config with what `--for` asks settled; None without it. Raises ConfigError for a goal that is none, and for
    a promise that this machine cannot keep."""
    if args.goal is None:
        return None
    from headrace.plan.hardware import this_machine
    from headrace.sim.planner.model import open_model
    from headrace.sim.planner.speed import Speeds
    from headrace.sim.tuning.goal import Goal
    from headrace.sim.tuning.settle import settle

    goal = Goal.parse(args.goal)
    model = open_model(config.model)
    hardware, profile, words = machine_here(config)
    machine = this_machine()
    machine = replace(machine, cores=min(config.num_threads or machine.cores, machine.cores))
    return settle(config, engine_options(args), goal, model, hardware, Speeds(profile), words, machine)


def machine_here(config: EngineConfig) -> tuple[Hardware, Profile | None, str]:
    """This machine as a data sheet, its measured profile if there is one, and in words where the rates come from.

    Without a profile the data sheet has the rates of a short roofline.
    """
    from headrace.bench.native.roofline import measure_roofline
    from headrace.plan.hardware import this_machine
    from headrace.plan.hardware_table import this_hardware
    from headrace.sim.profile_store import this_profile

    machine = this_machine()
    kernels = config.ops_force if config.ops_force in machine.kernels else None
    threads = min(config.num_threads or machine.cores, machine.cores)
    preferred = machine.kernels if kernels is None else (kernels,)
    hardware = this_hardware(replace(machine, cores=threads, kernels=preferred))
    profile = this_profile(kernels, threads)
    if profile is not None:
        return hardware, profile, "the profile that `headrace calibrate` stored"
    roofline = measure_roofline(kernels, threads, quick=True) if machine.kernels else None
    if roofline is None:
        return hardware, None, "assumed rates, as there are no native kernels to measure"
    peaks = tuple((name, peak.best) for name, peak in roofline.peaks.items())
    measured = replace(hardware, bandwidth=max(roofline.read.best, roofline.read_one.best), peak=peaks)
    return measured, None, "a short roofline, as no profile is stored (`headrace calibrate` makes one)"
