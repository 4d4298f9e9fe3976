"""The interfaces of clients of an engine in another process."""

from __future__ import annotations

from typing import Protocol

from headrace.core.engine import EngineStats
from headrace.core.types import NewRequest
from headrace.serving.client.stream import OutputStream
from headrace.serving.engine.state import EngineState, ModelFacts, View
from headrace.serving.requests.metering import Meter

GRACE_S = 5.0
"""Seconds that an engine process gets to end before it is killed."""


class Submitter(Protocol):
    """Submits requests. Calls come from one event loop."""

    async def submit(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        """Send a request to the engine; returns when it was accepted.

        The meter follows the request from here on, also if the submission is cancelled. If this raises a HeadraceError,
        the engine has computed nothing, and the meter may not be called.

        Raises RequestError if it cannot be served (Overloaded if there are too many), EngineDead without an engine.
        """
        ...

    def abort(self, request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
        """End a request, or one of its completions. Without an index its stream ends at once. Never blocks."""
        ...


class AsyncClient(Submitter, Protocol):
    """Also reports the engine's state and statistics, and closes it."""

    @property
    def facts(self) -> ModelFacts:
        """What the engine reported about its model."""
        ...

    @property
    def state(self) -> EngineState:
        """Whether there is an engine, and whether it takes new requests."""
        ...

    @property
    def restarts(self) -> int:
        """Number of engines that were started after the first."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why there is no engine, in one sentence for any caller; None while there is one."""
        ...

    def drain(self) -> None:
        """Start no further engine: running requests may finish, then `aclose` follows."""
        ...

    async def aclose(self, grace_s: float = GRACE_S) -> None:
        """End the engine, which gets `grace_s` seconds; open streams raise EngineDead. Closing twice does nothing."""
        ...

    async def stats(self) -> EngineStats:
        """Raises EngineDead without an engine."""
        ...

    async def view(self) -> View:
        """A snapshot of the engine, and the completions that ended since the last view. Raises EngineDead."""
        ...
