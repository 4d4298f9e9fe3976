"""The profile of this machine: as `headrace calibrate` stored it, or by the data sheet of what it seems to be."""

from __future__ import annotations

from dataclasses import replace

from headrace.plan.hardware import this_machine
from headrace.plan.hardware_table import this_hardware
from headrace.sim.profile import Profile
from headrace.sim.profile_store import this_profile


def profile_here(kernels: str | None = None, threads: int | None = None) -> tuple[Profile, str]:
    """The profile of this machine, measured or assumed, and where it comes from in a few words."""
    stored = this_profile(kernels, threads)
    if stored is not None:
        return stored, "the profile that `headrace calibrate` stored"
    return assumed_profile(threads), (
        "assumed rates of this kind of CPU, as no profile is stored: `headrace calibrate` measures one"
    )


def assumed_profile(threads: int | None = None) -> Profile:
    """Rates of this machine by its cores and instruction sets: good for the proportions of steps, the rest of which
    `sim.online` corrects."""
    machine = this_machine()
    return Profile.of_hardware(
        this_hardware(replace(machine, cores=min(threads or machine.cores, machine.cores)))
    )
