"""What a client waits for: the requests that an engine works on, and RPC replies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.core.types import NewRequest, Output
from headrace.errors import EngineDead, HeadraceError, InvalidParams, Overloaded
from headrace.serving.client.stream import OutputStream, Unread
from headrace.serving.requests.metering import Meter

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class Questions(Generic[Key, Answer]):
    """Those that wait for an answer of one kind, by key. On one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Key, asyncio.Future[Answer]] = {}

    async def ask(self, key: Key, send: Callable[[], None]) -> Answer:
        """Call `send`, then wait. Raises what `refuse` is given, and EngineDead."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        try:
            send()
            return await answer
        finally:
            self._waiting.pop(key, None)

    def answer(self, key: Key, answer: Answer) -> None:
        """Ignored where nobody waits any more."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def refuse(self, key: Key, error: HeadraceError) -> None:
        """The answer is an error. Ignored where nobody waits any more."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # looked at: whoever was to wait for it may have gone

    def fail(self, error: str) -> None:
        """The engine is dead: no answer will come to any of them."""
        for key in self._waiting:
            self.refuse(key, EngineDead(error))


class NumberedQuestions(Questions[int, Answer]):
    """Questions that are told apart by numbers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    async def ask_next(self, send: Callable[[int], None]) -> Answer:
        """As `ask`, with the next number."""
        number = next(self._numbers)
        return await self.ask(number, lambda: send(number))


class OpenStreams:
    """Streams by request id, for at most `max_completions` completions together.

    What waits for a slow reader is bounded by `max_unread_bytes`; see OutputStream. A request that its caller left
    counts no more, but its stream stays known until the engine has reported what was computed for it.
    """

    def __init__(self, max_completions: int, max_unread_bytes: int) -> None:
        self._max_completions = max_completions
        self._max_unread_bytes = max_unread_bytes
        self._unread = Unread()
        self._streams: dict[str, OutputStream] = {}
        self._left: dict[str, OutputStream] = {}  # closed here, not yet reported as ended by the engine
        self._sizes: dict[str, int] = {}
        self._completions = 0

    def open(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        """A stream for a request. Raises InvalidParams for an id that is in use, Overloaded where there is no room."""
        if new.request_id in self._streams:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        if self._completions + new.params.n > self._max_completions:
            raise Overloaded(f"{self._completions} completions are running or waiting: try again later")
        if (left := self._left.pop(new.request_id, None)) is not None:
            left.settle()  # the name means another request now
        stream = OutputStream(new.request_id, new.params.n, self._max_unread_bytes, self._unread, meter)
        self._streams[new.request_id] = stream
        self._sizes[new.request_id] = new.params.n
        self._completions += new.params.n
        return stream

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def put(self, output: Output) -> bool:
        """Hand out news; False where the reader does not keep up and is given up. News of others is ignored."""
        stream = self._streams.get(output.request_id)
        if stream is None:
            left = self._left.get(output.request_id)
            if left is not None and left.conclude(output):
                del self._left[output.request_id]
            return True  # aborted here, not yet there
        stream.put(output)
        kept_up = not stream.full
        if not kept_up:
            stream.give_up(Overloaded("the output was not read as fast as it came: the request was given up"))
        if stream.ended:
            self.forget(output.request_id)
        return kept_up

    def close(self, request_id: str) -> None:
        """End a stream for its reader. Unknown ids are ignored."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.close()
            self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Count a request no more: it has ended for its caller. Unknown ids are ignored."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._completions -= self._sizes.pop(request_id)
            if not stream.concluded:
                self._left[request_id] = stream

    def refused(self, request_id: str) -> None:
        """The engine has not taken a request, so it will report no end. Unknown ids are ignored."""
        self.forget(request_id)
        self.dropped(request_id)

    def dropped(self, request_id: str) -> None:
        """A request that its caller left never came to the engine. Unknown ids are ignored."""
        if (left := self._left.pop(request_id, None)) is not None:
            left.settle()

    def fail(self, error: str) -> None:
        """The engine is dead: every reader is told so."""
        streams = [*self._streams.values(), *self._left.values()]
        self._streams.clear()
        self._left.clear()
        self._sizes.clear()
        self._completions = 0
        for stream in streams:
            stream.fail(EngineDead(error))
