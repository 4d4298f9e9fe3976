"""Headrace for `benchmarks.families.driving`, with the work that the machine's limit depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.families.driving import main
from benchmarks.peers.drivers.driving import Job
from benchmarks.peers.drivers.headrace import HeadraceEngine
from headrace.sim.work import SliceShape, Work, decode_shape


def _run() -> None:
    engines: list[HeadraceEngine] = []

    def load(job: Job) -> HeadraceEngine:
        engines.append(HeadraceEngine(job))
        return engines[0]

    def limits(batch: int, prompt: int, outputs: int) -> Mapping[str, Any]:
        """Bytes and operations of all prompts at once, and of a decode step in the middle."""
        work = engines[0].work
        prefill = work.step((SliceShape(prompt, 0, 1),) * batch)
        return {
            "prefill": _plain(prefill),
            "decode": _plain(work.step(decode_shape(batch, prompt + outputs // 2))),
        }

    main(load, limits)


def _plain(work: Work) -> dict[str, Any]:
    return {"bytes": work.bytes, "operations": dict(work.operations)}


if __name__ == "__main__":
    _run()
