"""The core outputs of one request, on their way from the engine process to whoever reads them."""

from __future__ import annotations

import asyncio

from headrace.core.types import Output
from headrace.errors import HeadraceError

MAX_UNREAD = 65_536
"""Most outputs that wait for a slow reader; see `OutputStream.full`."""


class OutputStream:
    """Asynchronous iterator over lists of outputs; ends behind the last output of the last completion.

    A reader that lags gets longer lists. Reading raises what `fail` was given, after the outputs before it.
    """

    def __init__(self, request_id: str, completions: int, max_unread: int = MAX_UNREAD) -> None:
        self.request_id = request_id
        self._open = completions
        self._unread: list[Output] = []
        self._max_unread = max_unread
        self._error: HeadraceError | None = None
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Nothing will be put in any more."""
        return self._open == 0 or self._error is not None

    @property
    def full(self) -> bool:
        """So much is unread that the reader must be given up."""
        return len(self._unread) > self._max_unread

    def put(self, output: Output) -> None:
        """Add news; ignored after the end."""
        if self.ended:
            return
        self._unread.append(output)
        self._open -= output.finish_reason is not None
        self._news.set()

    def fail(self, error: HeadraceError) -> None:
        """End the stream with an error; ignored after the end."""
        if not self.ended:
            self._error = error
            self._news.set()

    def close(self) -> None:
        """End the stream: what is unread is dropped."""
        self._unread.clear()
        self._open = 0
        self._news.set()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> list[Output]:
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._open == 0:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        outputs, self._unread = self._unread, []
        return outputs
