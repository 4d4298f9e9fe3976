"""The core outputs of one request, on their way from the engine process to whoever reads them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.types import Output
from headrace.errors import HeadraceError

MAX_UNREAD_BYTES = 8 * 2**20
"""About how much memory the outputs may take that wait for a slow reader; see `OutputStream.full`."""

MAX_SHARED_BYTES = 256 * 2**20
"""The same for all readers of an engine together; beyond it `LEAST_UNREAD_BYTES` of one's own are too much."""

LEAST_UNREAD_BYTES = 128 * 2**10

MAX_TAKEN = 256
MAX_TAKEN_BYTES = 2**20
"""Most outputs that are taken in one go, and about how much memory of theirs: a reader that lagged does not keep the
others waiting."""

_OUTPUT_BYTES = 400
_TOKEN_BYTES = 32
_LOGPROB_BYTES = 160


class Unread:
    """What waits for the readers of several streams together."""

    def __init__(self, most: int = MAX_SHARED_BYTES) -> None:
        self.bytes = 0
        self.most = most


class OutputStream:
    """A source of the outputs of a request; exhausted behind the last output of the last completion.

    What is not taken waits here, up to a bound: see `full`.
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
        self._unread_bytes = 0  # of all but the first
        self._max_unread_bytes = max_unread_bytes
        self._shared = shared or Unread()
        self._error: HeadraceError | None = None
        self._listener: Callable[[], None] | None = None
        self._when_ended: Callable[[], None] | None = None
        self.output_tokens = 0
        """Tokens that have come, of all completions."""
        self.cached_tokens = 0
        """Prompt tokens that came from the prefix cache; known with the first token, or at the end."""
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

    # ---- What comes ----

    def put(self, output: Output) -> None:
        """Add news; ignored after the end."""
        if self.ended:
            return
        if self._unread:
            self._count(_size(output))
        self._unread.append(output)
        self.output_tokens += len(output.tokens)
        if output.stats is not None:
            self.scheduled |= output.stats.first_scheduled_s is not None
            if output.index == 0:
                self.cached_tokens = output.stats.num_cached
        if output.finish_reason is not None:
            self._open -= 1
            if self._open == 0:
                self._tell()
        if self._listener is not None:
            self._listener()

    def give_up(self, error: HeadraceError) -> None:
        """End the stream with an error at once: what is unread is dropped. Ignored after the end."""
        if not self.ended:
            self._drop()
        self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """End the stream with an error; ignored after the end."""
        if not self.ended:
            self._error = error
            self._end()

    def close(self) -> None:
        """End the stream: what is unread is dropped."""
        self._drop()
        self._open = 0
        self._end()

    def _end(self) -> None:
        self._tell()
        if self._listener is not None:
            self._listener()

    def _tell(self) -> None:
        call, self._when_ended = self._when_ended, None
        if call is not None:
            call()

    # ---- What is taken ----

    def listen(self, call: Callable[[], None] | None) -> None:
        """See Source."""
        self._listener = call
        if call is not None and (self._unread or self.ended):
            call()

    def take(self) -> list[Output]:
        """See Source. At most MAX_TAKEN outputs of about MAX_TAKEN_BYTES at a time."""
        unread = self._unread
        if len(unread) == 1:  # as nearly always
            self._unread = []
        elif not unread:
            if self._error is not None:
                raise self._error
            return []
        else:
            count, left = 0, MAX_TAKEN_BYTES
            while count < min(len(unread), MAX_TAKEN) and left > 0:
                left -= _size(unread[count])
                count += 1
            if count == len(unread):
                self._drop()
            else:
                self._unread = unread[count:]
                del unread[count:]
                self._count(-sum(map(_size, unread[1:])) - _size(self._unread[0]))
        return unread

    @property
    def waiting(self) -> bool:
        """See Source."""
        return bool(self._unread) or self._error is not None

    @property
    def exhausted(self) -> bool:
        """See Source. Never after an error, which is raised as often as somebody takes."""
        return self._open == 0 and not self._unread and self._error is None

    def _count(self, size: int) -> None:
        self._unread_bytes += size
        self._shared.bytes += size

    def _drop(self) -> None:
        self._unread = []
        self._count(-self._unread_bytes)

    def __del__(self) -> None:
        self._shared.bytes -= self._unread_bytes  # of an end that nobody came to read


def _size(output: Output) -> int:
    """About how many bytes an output takes in memory."""
    size = _OUTPUT_BYTES + _TOKEN_BYTES * len(output.tokens)
    if output.logprobs or output.prompt_logprobs:  # rarely
        for entries in (output.logprobs, output.prompt_logprobs):
            size += _LOGPROB_BYTES * sum(1 + len(entry.top) for entry in entries)
    return size
