"""The client of an engine in another process: one event loop here, one socket, many streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace import __version__
from headrace.core.engine import EngineStats
from headrace.core.types import NewRequest
from headrace.errors import EngineDead, HeadraceError, InvalidParams, Overloaded
from headrace.serving.client.base import GRACE_S
from headrace.serving.client.child import ENGINE_COMMAND, Child, describe_exit
from headrace.serving.client.pending import OpenStreams, PendingReplies
from headrace.serving.client.stream import MAX_UNREAD_BYTES, OutputStream
from headrace.serving.engine.state import EngineState, ModelFacts, View
from headrace.serving.engine.watchdog import Verdict, Watchdog
from headrace.serving.requests.metering import Meter
from headrace.serving.wire.connection import FrameBuffer, frame
from headrace.serving.wire.messages import (
    Abort,
    Accepted,
    Dropped,
    Failed,
    FromEngine,
    Hello,
    Message,
    Outputs,
    Ping,
    Pong,
    Ready,
    Refused,
    Shutdown,
    Snapshot,
    SnapshotRequest,
    Stats,
    StatsRequest,
    StepBegun,
    WireError,
    add,
    decode_from_engine,
    encode,
    error_of,
)

MAX_IN_FLIGHT = 2048
"""Most completions that may run or wait at the engine; further requests raise Overloaded."""

DEFAULT_START_TIMEOUT_S = 1800.0
"""Seconds that an engine process gets to load its model."""

MAX_UNSENT_BYTES = 64 * 2**20
"""Most bytes that may be unsent while the engine process reads nothing, as in a long step."""

MAX_TURN_BYTES = 10 * 2**10
"""Bytes of messages after which other tasks of the event loop run: about 500 log-probabilities."""

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 18
_EXIT_CODE_WAIT_S = 0.5


class ProcessClient:
    """Starts an engine process and talks to it; made by `start`, ended by `aclose`. An AsyncClient.

    When the engine process ends by itself, every stream and every call that waits raises EngineDead at once,
    `state` turns DEAD, and further requests are refused with the same error.
    """

    def __init__(
        self,
        child: Child,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._child = child
        self._streams = OpenStreams(max_in_flight, max_unread_bytes)
        self._accepting: PendingReplies[str, None] = PendingReplies()
        self._counting: PendingReplies[int, EngineStats] = PendingReplies()
        self._viewing: PendingReplies[int, View] = PendingReplies()
        self._numbers = itertools.count(1)
        self._error: str | None = None  # why the engine is dead
        self._abandoned = False
        self._facts: ModelFacts | None = None
        self._ready: asyncio.Future[ModelFacts] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        """Set once the engine process has ended, or is being killed."""
        self._watchdog = watchdog
        self._watching: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read(), name="engine-reader")

    @classmethod
    async def start(
        cls,
        config: Mapping[str, object],
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        watchdog: Watchdog | None = None,
        start_timeout_s: float | None = DEFAULT_START_TIMEOUT_S,
    ) -> ProcessClient:
        """Start the process with the options of `EngineConfig.to_json` and wait until its model is loaded.

        With a watchdog, a process that hangs later is killed.

        Raises what the engine process raised (ConfigError, ModelError, …), or EngineDead if it just ended, or took
        longer than `start_timeout_s`.
        """
        child = await Child.start(command)
        client = cls(child, max_in_flight=max_in_flight, max_unread_bytes=max_unread_bytes, watchdog=watchdog)
        try:
            client._send(Hello(__version__, json.dumps(config)))
            async with asyncio.timeout(start_timeout_s):
                client._facts = await client._ready
            if watchdog is not None:
                client._watching = asyncio.create_task(client._watch(watchdog), name="engine-watchdog")
        except TimeoutError as error:
            late = EngineDead(f"the engine did not load its model within {start_timeout_s:g} s")
            await client._end(late, grace_s=0.0)
            raise late from error
        except BaseException:
            await client._end(EngineDead("the engine did not start"), grace_s=0.0)
            raise
        return client

    @property
    def facts(self) -> ModelFacts:
        """What the engine process reported about its model."""
        if self._facts is None:
            raise RuntimeError("the engine is not ready")
        return self._facts

    @property
    def state(self) -> EngineState:
        """STARTING until the model is loaded, then READY, and DEAD once the engine process has ended."""
        if self._error is not None:
            return EngineState.DEAD
        return EngineState.STARTING if self._facts is None else EngineState.READY

    @property
    def restarts(self) -> int:
        """0: an engine that has ended is not started again here."""
        return 0

    @property
    def trouble(self) -> str | None:
        """How the engine process ended, if it did."""
        return self._error

    @property
    def pid(self) -> int:
        """Process id of the engine process."""
        return self._child.pid

    async def submit(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        """Hand over a request; see AsyncClient. A caller that is cancelled meanwhile leaves nothing running."""
        self._check_alive()
        if self._child.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise Overloaded("the engine does not read requests as fast as they come: try again later")
        new = replace(new, submission=next(self._numbers))
        payload = _payload(new)
        stream = self._streams.open(new, meter)
        try:
            await self._accepting.wait(new.key, lambda: self._write(payload))
        except HeadraceError:
            self._streams.refused(new.key)
            raise
        except asyncio.CancelledError:
            self._abort(new.key)
            raise
        return stream

    def abort(self, request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
        """End a request, or one completion of it; see AsyncClient. Unknown ids are ignored."""
        key = self._streams.key_of(request_id)
        if key is not None:
            self._abort(key, index, stopped)

    def _abort(self, key: str, index: int | None = None, stopped: bool = False) -> None:
        if key not in self._streams:
            return
        if index is None:
            self._streams.close(key)
            self._accepting.resolve(key, None)  # `submit` returns a stream that has ended
        self._try_send(Abort(key, index, stopped))

    async def stats(self) -> EngineStats:
        """A snapshot, taken between two steps."""
        self._check_alive()
        number = next(self._numbers)
        return await self._counting.wait(number, lambda: self._send(StatsRequest(number)))

    async def view(self) -> View:
        """A snapshot with the endings since the last one, taken between two steps."""
        self._check_alive()
        number = next(self._numbers)
        return await self._viewing.wait(number, lambda: self._send(SnapshotRequest(number)))

    def drain(self) -> None:
        """Does nothing: an engine that has ended is not started again here."""

    async def aclose(self, grace_s: float = GRACE_S) -> None:
        """Ask the engine process to end, kill it if it does not within `grace_s` seconds; no child is left.

        Streams that are still open raise EngineDead. Closing twice does nothing.
        """
        self._try_send(Shutdown())
        await self._end(EngineDead("the engine was shut down"), grace_s)

    def abandon(self) -> None:
        """Let the engine process end at once, without waiting for it. For finalizers; may be called in any thread."""
        self._abandoned = True
        self._child.hang_up()

    # ---- Messages from the engine ----

    async def _read(self) -> None:
        """Dispatch messages until the stream ends, then fail everything that waits."""
        frames = FrameBuffer()
        error: HeadraceError | None = None
        try:
            taken = 0  # bytes since other tasks ran
            while error is None and (data := await self._child.reader.read(_READ_BYTES)):
                for payload in frames.feed(data):
                    message = decode_from_engine(payload)
                    if isinstance(message, Failed):
                        error = error_of(message)
                    else:
                        self._dispatch(message)
                    taken += len(payload)
                    if taken >= MAX_TURN_BYTES:
                        taken = 0
                        await asyncio.sleep(0)
        except WireError as broken:
            error = EngineDead(f"the engine process sent invalid data: {broken}")
        except OSError:
            pass  # a reset is an end like any other
        except Exception as bug:  # no call may wait for a reader that has stopped
            _log.error("reading from the engine failed", exc_info=bug)
            error = EngineDead(f"the server lost its engine: {type(bug).__name__}: {bug}")
        if error is None:
            code = await self._child.wait(_EXIT_CODE_WAIT_S)
            before = "" if self._ready.done() else " before its model was loaded"
            error = EngineDead(f"the engine process {describe_exit(code)}{before}")
        if self._error is None and self._ready.done() and not self._abandoned:
            _log.error("the engine is dead: %s", error)
        self._die(error)
        await self._child.stop(GRACE_S)

    def _dispatch(self, message: FromEngine) -> None:
        if self._watchdog is not None:
            self._watchdog.heard()
        match message:
            case Outputs():
                for output in message.outputs:
                    if not self._streams.put(output):
                        self._try_send(Abort(output.request_id, None, False))
            case Accepted():
                self._accepting.resolve(message.key, None)
            case Refused():
                self._streams.refused(message.key)
                self._accepting.reject(message.key, error_of(message))
            case Dropped():
                self._streams.dropped(message.key)
            case Stats():
                self._counting.resolve(message.number, message.stats)
            case StepBegun():
                if self._watchdog is not None:
                    self._watchdog.step_begun(message.tokens, message.expected_s)
            case Pong():
                if self._watchdog is not None:
                    self._watchdog.answered()
            case Snapshot():
                self._viewing.resolve(message.number, message.view)
            case Ready():
                if self._ready.done():
                    raise WireError("a second Ready message")
                self._ready.set_result(message.facts)
            case _:
                raise WireError(f"a {type(message).__name__} message has no place here")

    async def _watch(self, watchdog: Watchdog) -> None:
        """Kill an engine process that hangs."""
        while self._error is None:
            match watchdog.check():
                case Verdict.ASK:
                    self._try_send(Ping())
                case Verdict.HUNG:
                    self._die(EngineDead(f"the engine gave no sign of life for {watchdog.silence_s:.0f} s"))
                    _log.error("%s: it is killed", self._error)
                    await self._child.stop(0.0)
                    return
            await asyncio.sleep(watchdog.interval_s)

    # ---- Endings ----

    def _die(self, error: HeadraceError) -> None:
        """Fail everything that waits."""
        if self._error is not None:
            return
        self._error = str(error)
        self.ended.set()
        # Before the model is loaded `start` raises the error itself; after that it is EngineDead, whatever it was.
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # retrieved: the caller of `start` may have left
        for waiting in (self._accepting, self._counting, self._viewing):
            waiting.fail(self._error)
        self._streams.fail(self._error)

    async def _end(self, error: HeadraceError, grace_s: float) -> None:
        self._die(error)
        try:
            await self._child.stop(grace_s)
        finally:
            tasks = [task for task in (self._reading, self._watching) if task is not None]
            for task in tasks:
                task.cancel()
        await asyncio.wait(tasks)

    def _check_alive(self) -> None:
        if self._error is not None:
            raise EngineDead(self._error)

    def _send(self, message: Message) -> None:
        self._write(frame(encode(message)))

    def _try_send(self, message: Message) -> None:
        """As `_send`; does nothing if the engine has ended."""
        if self._error is None and not self._child.writer.is_closing():
            self._send(message)

    def _write(self, payload: bytes) -> None:
        """Raises EngineDead if the connection is closed.

        The transport closes with the first write that fails; `_read` sets `_error` later, once the exit code is known.
        """
        self._check_alive()
        if self._child.writer.is_closing():
            raise EngineDead("the engine process has closed its connection")
        self._child.writer.write(payload)


def _payload(new: NewRequest) -> bytes:
    try:
        return frame(encode(add(new)))
    except WireError as error:
        raise InvalidParams(f"the request cannot be sent to the engine: {error}") from error
