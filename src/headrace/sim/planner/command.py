"""The command that starts a setting, as far as this version can."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from headrace.plan.hardware import Hardware
from headrace.plan.units import MIB
from headrace.sim.planner.formats import AS_STORED
from headrace.sim.planner.search import Setting


def serve_options(setting: Setting, context: int) -> dict[str, str]:
    """The options of `headrace serve` that make the setting, by flag, for sequences of up to `context` tokens."""
    options = {}
    if setting.stored.format != AS_STORED:
        options["--quantization"] = setting.stored.format
    if setting.stored.kv != "auto":
        options["--kv-cache-dtype"] = setting.stored.kv
    eviction = setting.footprint.eviction
    if eviction is not None:
        options["--kv-eviction"] = "snapkv"
        options["--kv-eviction-budget"] = str(eviction.budget)
    options["--max-num-seqs"] = str(setting.point.batch)
    options["--max-model-len"] = str(context)
    # The engine takes at most 4 GiB by itself.
    size = setting.footprint.kv(setting.point.batch, context)
    options["--kv-cache-memory"] = f"{-(-size // MIB)}MiB"
    return options


def start_command(setting: Setting, context: int) -> tuple[str | None, str]:
    """(command, note). None where this version cannot start it, and the note says why; else the note says how many
    processes there are, if more than one."""
    words = [word for option in serve_options(setting, context).items() for word in option]
    placed = setting.footprint.placement.devices
    return serve_command(
        setting.stored.model.name, setting.hardware, placed, words, setting.copies, setting.machines
    )


def serve_command(
    model: str, hardware: Hardware, devices: int, words: Sequence[str], copies: int, machines: int
) -> tuple[str | None, str]:
    """As `start_command`, for `machines` of this hardware, each with `copies` engines on so many devices. words: the
    flags of `headrace serve`."""
    if hardware.kind == "cuda":
        return None, "no command: this version runs models on CPUs, and plans for GPUs"
    if devices > 1:
        return None, "no command: tensor and pipeline parallelism are not in this version"
    processes = copies * machines
    note = ""
    if processes > 1:
        kind = "machine" if machines == 1 else "machines"
        sockets = f", one on each of {copies} sockets" if copies > 1 else ""
        note = f"{processes} of these on {machines} {kind}{sockets}, behind a load balancer"
    return shlex.join(["headrace", "serve", model, *words]), note
