"""The requests that an engine works on, as their callers see them."""

from __future__ import annotations

from headrace.core.types import NewRequest, Output
from headrace.errors import EngineDead, InvalidParams, Overloaded
from headrace.serving.stream import OutputStream, Unread


class OpenStreams:
    """Streams by request id, for at most `max_completions` completions together.

    What waits for a slow reader is bounded by `max_unread_bytes`; see OutputStream.
    """

    def __init__(self, max_completions: int, max_unread_bytes: int) -> None:
        self._max_completions = max_completions
        self._max_unread_bytes = max_unread_bytes
        self._unread = Unread()
        self._streams: dict[str, OutputStream] = {}
        self._sizes: dict[str, int] = {}
        self._completions = 0

    def open(self, new: NewRequest) -> OutputStream:
        """A stream for a request. Raises InvalidParams for an id that is in use, Overloaded where there is no room."""
        if new.request_id in self._streams:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        if self._completions + new.params.n > self._max_completions:
            raise Overloaded(f"{self._completions} completions are running or waiting: try again later")
        stream = OutputStream(new.request_id, new.params.n, self._max_unread_bytes, self._unread)
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
        """The request is none of the engine's any more. Unknown ids are ignored."""
        if self._streams.pop(request_id, None) is not None:
            self._completions -= self._sizes.pop(request_id)

    def fail(self, error: str) -> None:
        """The engine is dead: every reader is told so."""
        streams = list(self._streams.values())
        self._streams.clear()
        self._sizes.clear()
        self._completions = 0
        for stream in streams:
            stream.fail(EngineDead(error))
