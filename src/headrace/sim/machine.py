"""The profile of this machine: as `headrace calibrate` stored it, or by the data sheet of what it seems to be."""

from __future__ import annotations

from dataclasses import replace

from headrace.plan.hardware import this_machine
from headrace.plan.hardware_table import this_hardware
from headrace.sim.profile import Profile
from headrace.sim.profile_store import this_profile


def profile_here(kernels: str | None = None, threads: int | None = None) -> Profile:
    """The measured profile, or the assumed one. Both are good for the proportions of steps; `sim.online` corrects the
    rest."""
    return this_profile(kernels, threads) or assumed_profile(threads)


def assumed_profile(threads: int | None = None) -> Profile:
    """Rates of this machine by its cores and instruction sets."""
    machine = this_machine()
    return Profile.of_hardware(
        this_hardware(replace(machine, cores=min(threads or machine.cores, machine.cores)))
    )
