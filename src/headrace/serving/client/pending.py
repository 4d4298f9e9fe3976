"""What a client waits for: replies of the engine process, and the outputs of the requests that it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from headrace.core.types import NewRequest, Output
from headrace.errors import EngineDead, HeadraceError, InvalidParams, Overloaded
from headrace.serving.client.stream import OutputStream, Unread
from headrace.serving.requests.metering import Meter

Key = TypeVar("Key", bound=Hashable)
Reply = TypeVar("Reply")


class PendingReplies(Generic[Key, Reply]):
    """Calls that wait for a reply of one kind, by key. On one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Key, asyncio.Future[Reply]] = {}

    async def wait(self, key: Key, send: Callable[[], None]) -> Reply:
        """Call `send`, then wait for the reply. Raises what `reject` is given, and EngineDead."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[key] = reply
        try:
            send()
            return await reply
        finally:
            self._waiting.pop(key, None)

    def resolve(self, key: Key, reply: Reply) -> None:
        """Ignored if no call waits for the key."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def reject(self, key: Key, error: HeadraceError) -> None:
        """Raise an error in the call. Ignored if no call waits for the key."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # retrieved, so that asyncio does not log it if the caller has left

    def fail(self, error: str) -> None:
        """The engine is dead: every call raises EngineDead."""
        for key in self._waiting:
            self.reject(key, EngineDead(error))


class OpenStreams:
    """Streams by the keys of their requests (`NewRequest.key`), for at most `max_completions` completions together.

    Unread output of a slow reader is bounded by `max_unread_bytes`; see OutputStream. A request that its caller left no
    longer counts, and its id is free, but its stream is kept until the engine has reported what was computed for it.
    """

    def __init__(self, max_completions: int, max_unread_bytes: int) -> None:
        self._max_completions = max_completions
        self._max_unread_bytes = max_unread_bytes
        self._unread = Unread()
        self._streams: dict[str, OutputStream] = {}
        self._keys: dict[str, str] = {}  # of the streams in `_streams`, by request id
        self._left: dict[str, OutputStream] = {}  # closed here, not yet reported as ended by the engine
        self._sizes: dict[str, int] = {}
        self._completions = 0

    def open(self, new: NewRequest, meter: Meter | None = None) -> OutputStream:
        """A stream for a request. Raises InvalidParams for an id that is in use, Overloaded if there is no room."""
        if new.request_id in self._keys:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        if self._completions + new.params.n > self._max_completions:
            raise Overloaded(f"{self._completions} completions are running or waiting: try again later")
        stream = OutputStream(new.request_id, new.params.n, self._max_unread_bytes, self._unread, meter)
        self._keys[new.request_id] = new.key
        self._streams[new.key] = stream
        self._sizes[new.key] = new.params.n
        self._completions += new.params.n
        return stream

    def __contains__(self, key: str) -> bool:
        return key in self._streams

    def key_of(self, request_id: str) -> str | None:
        """The key of the request that has an id now."""
        return self._keys.get(request_id)

    def put(self, output: Output) -> bool:
        """Pass an output to its stream; False if the reader is too slow and was dropped. Ignores unknown keys."""
        stream = self._streams.get(output.request_id)
        if stream is None:
            left = self._left.get(output.request_id)
            if left is not None and left.conclude(output):
                del self._left[output.request_id]
            return True  # aborted here, not yet at the engine
        stream.put(output)
        kept_up = not stream.full
        if not kept_up:
            stream.give_up(Overloaded("the output was not read as fast as it came: the request was aborted"))
        if stream.ended:
            self.forget(output.request_id)
        return kept_up

    def close(self, key: str) -> None:
        """End a stream for its reader. Ignores unknown keys."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.close()
            self.forget(key)

    def forget(self, key: str) -> None:
        """Stop counting a request that has ended for its caller. Ignores unknown keys."""
        stream = self._streams.pop(key, None)
        if stream is not None:
            del self._keys[stream.request_id]
            self._completions -= self._sizes.pop(key)
            if not stream.concluded:
                self._left[key] = stream

    def refused(self, key: str) -> None:
        """The engine has refused a request, so it will report no end. Ignores unknown keys."""
        self.forget(key)
        self.dropped(key)

    def dropped(self, key: str) -> None:
        """The engine never started a request that its caller left. Ignores unknown keys."""
        if (left := self._left.pop(key, None)) is not None:
            left.settle()

    def fail(self, error: str) -> None:
        """The engine is dead: every stream raises EngineDead."""
        streams = [*self._streams.values(), *self._left.values()]
        self._streams.clear()
        self._keys.clear()
        self._left.clear()
        self._sizes.clear()
        self._completions = 0
        for stream in streams:
            stream.fail(EngineDead(error))
