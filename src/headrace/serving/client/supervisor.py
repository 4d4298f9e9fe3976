"""A client that outlives its engines: when one ends the next is started, after a growing pause."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.core.engine import EngineStats
from headrace.core.types import NewRequest
from headrace.errors import ConfigError, EngineDead, HeadraceError, MissingDependency, ModelError
from headrace.serving.client.base import GRACE_S
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.stream import OutputStream
from headrace.serving.engine.state import EngineState, ModelFacts, View
from headrace.serving.requests.metering import Meter
from headrace.serving.system import MONOTONIC, Clock


@dataclass(slots=True)
class Backoff:
    """Delays of `first_s`, doubled each time up to `longest_s`; starts over after `healthy_s` without a failure."""

    first_s: float = 1.0
    longest_s: float = 30.0
    healthy_s: float = 60.0
    _last_s: float = 0.0

    def after(self, lived_s: float) -> float:
        """Seconds to wait after an engine that ran for `lived_s` seconds (0: it did not start)."""
        if lived_s >= self.healthy_s:
            self._last_s = 0.0
        self._last_s = min(self.longest_s, max(self.first_s, 2 * self._last_s))
        return self._last_s


Starter = Callable[[], Awaitable[ProcessClient]]
"""Starts an engine process and waits until its model is loaded."""

_TROUBLES: tuple[tuple[type[HeadraceError], str], ...] = (
    (ConfigError, "the engine's options do not fit this machine any more"),
    (ModelError, "the model cannot be loaded any more"),
    (MissingDependency, "a package that the engine needs is missing"),
    (EngineDead, "the engine ended while it started"),
)
"""Public reasons for a failed start. The errors themselves name folders, so they are only logged."""

_log = logging.getLogger(__name__)


class Supervisor:
    """Owns one engine at a time; made by `start`, ended by `aclose`. An AsyncClient.

    When the engine ends by itself, all its streams raise EngineDead, and so does `submit` until another one has loaded
    its model. Starts are repeated with growing pauses and without end; `trouble` gives the reason of a failed start.
    """

    def __init__(
        self, starter: Starter, engine: ProcessClient, backoff: Backoff, clock: Clock = MONOTONIC
    ) -> None:
        self._starter = starter
        self._engine = engine
        self._backoff = backoff
        self._clock = clock
        self._facts = engine.facts
        self._started = clock()
        self._next_start: float | None = None
        self._trouble: str | None = None
        self._draining = False
        self._closed = False
        self.restarts = 0
        """Engines that were started after the first."""
        self._loop = asyncio.get_running_loop()
        self._watching = asyncio.create_task(self._watch(), name="engine-supervisor")

    @classmethod
    async def start(cls, starter: Starter, backoff: Backoff | None = None) -> Supervisor:
        """Start the first engine. Raises what `starter` raises: without a first start there is nothing to repeat."""
        return cls(starter, await starter(), backoff or Backoff())

    @property
    def facts(self) -> ModelFacts:
        """What the first engine reported about its model. Later engines serve the same model."""
        return self._facts

    @property
    def state(self) -> EngineState:
        if self._closed:
            return EngineState.DEAD
        if self._engine.state.alive:
            return EngineState.DRAINING if self._draining else EngineState.READY
        return EngineState.DEAD if self._draining else EngineState.RESTARTING

    @property
    def trouble(self) -> str | None:
        """Why there is no engine: the last failed start, or else how the engine ended."""
        return None if self.state.alive else self._trouble or self._engine.trouble

    @property
    def pid(self) -> int:
        """Process id of the latest engine process."""
        return self._engine.pid

    async def submit(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        """See AsyncClient."""
        return await self._running().submit(new, meter)

    def abort(self, request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
        """See AsyncClient."""
        self._engine.abort(request_id, index, stopped=stopped)

    async def stats(self) -> EngineStats:
        """See AsyncClient."""
        return await self._running().stats()

    async def view(self) -> View:
        """See AsyncClient."""
        return await self._running().view()

    def drain(self) -> None:
        """See AsyncClient."""
        self._draining = True

    async def aclose(self, grace_s: float = GRACE_S) -> None:
        """End the engine as `ProcessClient.aclose` does, and start no other one. Closing twice does nothing."""
        self._closed = True
        self._watching.cancel()
        await asyncio.wait([self._watching])
        await self._engine.aclose(grace_s)

    def abandon(self) -> None:
        """End the engine at once, and start no other one. For finalizers: of any thread, during or after the loop."""
        self._draining = True
        self._engine.abandon()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the watch with it
            self._loop.call_soon_threadsafe(self._watching.cancel)

    # ---- Restarts ----

    async def _watch(self) -> None:
        while True:
            await self._engine.ended.wait()
            lived_s = self._clock() - self._started
            await self._engine.aclose(0.0)  # reaps the child before the next one starts
            while not self._draining:
                pause_s = self._backoff.after(lived_s)
                self._next_start = self._clock() + pause_s
                _log.warning("the next engine is started in %g s", pause_s)
                await asyncio.sleep(pause_s)
                if await self._restart():
                    break
                lived_s = 0.0
            else:
                return

    async def _restart(self) -> bool:
        """Start another engine; returns whether there is one now."""
        try:
            engine = await self._starter()
        except HeadraceError as error:
            _log.error("the engine could not be started again: %s", error)
            self._trouble = _sentence(error)
            return False
        except OSError as error:  # out of processes, files or memory
            _log.error("no engine process could be started: %s", error)
            self._trouble = "no engine process could be started"
            return False
        if _identity(engine.facts) != _identity(self._facts):
            # The tokenizer and the names of the server belong to the first model.
            _log.error("the model on disk is not the one that was served: restart the server to serve it")
            self._trouble = "the model on disk is not the one that was served"
            await engine.aclose(0.0)
            return False
        self._engine, self._trouble, self._next_start = engine, None, None
        self._started = self._clock()
        self.restarts += 1
        _log.warning("the engine runs again")
        return True

    def _running(self) -> ProcessClient:
        """The engine. While there is none, raises EngineDead with the seconds after which there may be one."""
        if self._engine.state.alive:
            return self._engine
        if self._draining or self._closed:
            raise EngineDead("the engine has ended, and will not be restarted")
        error = EngineDead(f"the engine is being restarted: {self.trouble}")
        wait_s = 0.0 if self._next_start is None else self._next_start - self._clock()
        error.retry_after_s = max(1, math.ceil(wait_s) + 1)
        raise error


def _sentence(error: HeadraceError) -> str:
    for kind, sentence in _TROUBLES:
        if isinstance(error, kind):
            return sentence
    return "the engine could not be started again"


def _identity(facts: ModelFacts) -> tuple[object, ...]:
    return facts.model, facts.vocab_size, facts.tokenizer_folder
