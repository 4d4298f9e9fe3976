"""Where an engine is in its life, as its client and the health routes tell it."""

from __future__ import annotations

import enum


class EngineState(enum.Enum):
    """READY and DRAINING engines run requests; only a READY one is for new callers."""

    STARTING = "starting"  # its model is being loaded for the first time
    READY = "ready"
    RESTARTING = "restarting"  # it ended by itself, and another one is on its way
    DRAINING = "draining"  # the server ends: what runs may finish
    DEAD = "dead"  # it ended, and no other one will come

    @property
    def alive(self) -> bool:
        """There is an engine that runs requests."""
        return self in (EngineState.READY, EngineState.DRAINING)
