"""The core outputs of one request, on their way from the engine process to whoever reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.core.types import Output
from headrace.errors import HeadraceError

MAX_UNREAD_BYTES = 8 * 2**20
"""About how much memory the outputs may take that wait for a slow reader; see `OutputStream.full`."""

MAX_SHARED_BYTES = 256 * 2**20
"""The same for all readers of an engine together; beyond it `LEAST_UNREAD_BYTES` of one's own are too much."""

LEAST_UNREAD_BYTES = 128 * 2**10

_OUTPUT_BYTES = 400
_TOKEN_BYTES = 32
_LOGPROB_BYTES = 160


class Unread:
    """What waits for the readers of several streams together."""

    def __init__(self, most: int = MAX_SHARED_BYTES) -> None:
        self.bytes = 0
        self.most = most


class OutputStream:
    """Asynchronous iterator over lists of outputs; ends behind the last output of the last completion.

    There is one reader; one that lags gets longer lists. Reading raises what `fail` was given, after the outputs
    before it.
    """

    def __init__(
        self,
        request_id: str,
        completions: int,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        shared: Unread | None = None,
    ) -> None:
        self.request_id = request_id
        self._open = completions
        self._unread: list[Output] = []
        self._unread_bytes = 0
        self._max_unread_bytes = max_unread_bytes
        self._shared = shared or Unread()
        self._error: HeadraceError | None = None
        self._reader: asyncio.Future[None] | None = None  # who waits for news
        self._when_ended: Callable[[], None] | None = None
        self.output_tokens = 0
        """Tokens that have come, of all completions."""
        self.cached_tokens = 0
        """Prompt tokens that came from the prefix cache; known at the end."""
        self.scheduled = False
        """The prompt was computed, at least in part; known with the first token, or at the end."""

    def when_ended(self, call: Callable[[], None]) -> None:
        """Have `call` called once, when nothing more will come, for whatever reason; at once if that is now."""
        if self.ended:
            call()
        else:
            self._when_ended = call

    @property
    def ended(self) -> bool:
        """Nothing will be put in any more."""
        return self._open == 0 or self._error is not None

    @property
    def full(self) -> bool:
        """So much is unread that the reader must be given up. One output alone may be of any size."""
        if self._unread_bytes > self._max_unread_bytes:
            return True
        return self._unread_bytes > LEAST_UNREAD_BYTES and self._shared.bytes > self._shared.most

    def put(self, output: Output) -> None:
        """Add news; ignored after the end."""
        if self.ended:
            return
        if self._unread:
            size = _size(output)
            self._unread_bytes += size
            self._shared.bytes += size
        self._unread.append(output)
        self.output_tokens += len(output.tokens)
        if output.finish_reason is not None:
            self._open -= 1
            if output.stats is not None:
                self.scheduled |= output.stats.first_scheduled_s is not None
                self.cached_tokens += output.stats.num_cached if output.index == 0 else 0
            if self._open == 0:
                self._tell()
        self._wake()

    def give_up(self, error: HeadraceError) -> None:
        """End the stream with an error at once: what is unread is dropped. Ignored after the end."""
        if not self.ended:
            self._take()
        self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """End the stream with an error; ignored after the end."""
        if not self.ended:
            self._error = error
            self._tell()
            self._wake()

    def close(self) -> None:
        """End the stream: what is unread is dropped."""
        self._take()
        self._open = 0
        self._tell()
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _tell(self) -> None:
        call, self._when_ended = self._when_ended, None
        if call is not None:
            call()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> list[Output]:
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._open == 0:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._take()

    def _take(self) -> list[Output]:
        outputs, self._unread = self._unread, []
        self._shared.bytes -= self._unread_bytes
        self._unread_bytes = 0
        return outputs

    def __del__(self) -> None:
        self._shared.bytes -= self._unread_bytes  # of an end that nobody came to read


def _size(output: Output) -> int:
    """About how many bytes an output takes in memory."""
    size = _OUTPUT_BYTES + _TOKEN_BYTES * len(output.tokens)
    if output.logprobs or output.prompt_logprobs:  # rarely
        for entries in (output.logprobs, output.prompt_logprobs):
            size += _LOGPROB_BYTES * sum(1 + len(entry.top) for entry in entries)
    return size
