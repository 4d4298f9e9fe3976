"""The core outputs of one request, from the engine process to the request's reader."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.types import Output, RequestStats
from headrace.errors import HeadraceError
from headrace.serving.requests.metering import Meter, ReadCounts, Used

MAX_UNREAD_BYTES = 8 * 2**20
"""About how much memory the unread outputs of one request may take; see `OutputStream.full`."""

MAX_SHARED_BYTES = 256 * 2**20
"""The same for all requests of an engine together; beyond it one request may have `LEAST_UNREAD_BYTES`."""

LEAST_UNREAD_BYTES = 128 * 2**10

MAX_TAKEN = 256
MAX_TAKEN_BYTES = 2**20
"""Most outputs that one `take` returns, and about how much memory they take: a reader that lags does not delay the
others."""

_OUTPUT_BYTES = 400
_TOKEN_BYTES = 32
_LOGPROB_BYTES = 160


class Unread:
    """Unread bytes of several streams together."""

    def __init__(self, most: int = MAX_SHARED_BYTES) -> None:
        self.bytes = 0
        self.most = most


class OutputStream:
    """A source of the outputs of a request; exhausted after the last output of the last completion.

    Unread output is buffered up to a limit; a client that is slower is dropped, see `full`.
    """

    def __init__(
        self,
        request_id: str,
        completions: int,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        shared: Unread | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.request_id = request_id
        self._completions = completions
        self._open = completions
        self._unread: list[Output] = []
        self._unread_bytes = 0  # of all but the first
        self._max_unread_bytes = max_unread_bytes
        self._shared = shared or Unread()
        self._error: HeadraceError | None = None
        self._listener: Callable[[], None] | None = None
        self.output_tokens = 0
        """Tokens received, of all completions."""
        self._meter = meter
        self._paid = 0  # output tokens that were reported to the meter
        self._unfinished = completions  # completions whose end the engine has not reported
        self._stats: dict[int, RequestStats] = {}  # the latest of each completion
        self._reads: ReadCounts | None = None
        self._read = False  # the reader is done
        self._released = False

    @property
    def ended(self) -> bool:
        """No output will be added."""
        return self._open == 0 or self._error is not None

    @property
    def full(self) -> bool:
        """So much is unread that the reader must be dropped. A single output may be of any size."""
        if self._unread_bytes > self._max_unread_bytes:
            return True
        return self._unread_bytes > LEAST_UNREAD_BYTES and self._shared.bytes > self._shared.most

    # ---- Usage ----

    def count_reads(self, reads: ReadCounts) -> None:
        """Set the reader's own counts of what it takes, and of where its completions end."""
        self._reads = reads

    def finish(self) -> None:
        """The reader takes no more, and its counts are final."""
        self._read = True
        self._settle_if_complete()

    def conclude(self, output: Output) -> bool:
        """Note an output after the reader has left; returns whether every completion has ended."""
        if output.finish_reason is not None:
            self._note(output)
            self._settle_if_complete()
        return self.concluded

    @property
    def concluded(self) -> bool:
        """The engine has reported the end of every completion."""
        return self._unfinished == 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens taken from the prefix cache, known from the first output on."""
        return self._stats[0].num_cached if 0 in self._stats else 0

    @property
    def num_pinned_tokens(self) -> int:
        """Prompt tokens whose blocks stay pinned as the request asked, known from the first output on."""
        return self._stats[0].num_pinned if 0 in self._stats else 0

    def settle(self) -> None:
        """Report the usage that is known to the meter: the engine will report no more. Does nothing the second time."""
        self._release()
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.settle(self._used())

    def _note(self, output: Output) -> None:
        if output.stats is not None:
            self._stats[output.index] = output.stats
        if output.finish_reason is not None:
            self._unfinished -= 1

    def _settle_if_complete(self) -> None:
        if self._read and self.concluded:
            self.settle()

    def _release(self) -> None:
        if self._meter is not None and not self._released:
            self._released = True
            self._meter.release()

    def _used(self) -> Used:
        stats = self._stats
        reads = [
            (0, False) if self._reads is None else self._reads.counted(i) for i in range(self._completions)
        ]
        outputs = []
        for index, (taken, ended) in enumerate(reads):
            known = stats.get(index)
            # An engine that died has not reported the end: only what was delivered is known then.
            left = not ended and known is not None and known.finished_s is not None
            outputs.append(known.num_output if known is not None and left else taken)
        return Used(
            prompt_tokens=max((one.num_computed for one in stats.values()), default=0),
            cached_tokens=self.num_cached_tokens,
            outputs=tuple(outputs),
            delivered_tokens=sum(taken for taken, _ in reads),
        )

    # ---- Input ----

    def put(self, output: Output) -> None:
        """Add an output; ignored after the end."""
        if self.ended:
            return
        if self._unread:
            self._count(_size(output))
        self._unread.append(output)
        self.output_tokens += len(output.tokens)
        if self.output_tokens > self._paid and self._meter is not None:
            self._paid = self._meter.renew(self.output_tokens)
        if output.stats is not None or output.finish_reason is not None:
            self._note(output)
        if output.finish_reason is not None:
            self._open -= 1
            if self._open == 0:
                self._release()
        if self._listener is not None:
            self._listener()

    def give_up(self, error: HeadraceError) -> None:
        """End the stream with an error at once, and drop unread outputs. Ignored after the end."""
        if not self.ended:
            self._drop()
            self._error = error
            self._end()

    def fail(self, error: HeadraceError) -> None:
        """The engine is dead: end the stream with an error after its unread outputs, unless it has ended."""
        if not self.ended:
            self._error = error
            self._end()
        if not self.concluded:
            self.settle()

    def close(self) -> None:
        """End the stream, and drop unread outputs."""
        self._drop()
        self._open = 0
        self._end()
        self.finish()

    def _end(self) -> None:
        self._release()
        if self._listener is not None:
            self._listener()

    # ---- Output ----

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
        """See Source. Never after an error, which every `take` raises."""
        return self._open == 0 and not self._unread and self._error is None

    def _count(self, size: int) -> None:
        self._unread_bytes += size
        self._shared.bytes += size

    def _drop(self) -> None:
        self._unread = []
        self._count(-self._unread_bytes)

    def __del__(self) -> None:
        self._shared.bytes -= self._unread_bytes


def _size(output: Output) -> int:
    """About how many bytes an output takes in memory."""
    size = _OUTPUT_BYTES + _TOKEN_BYTES * len(output.tokens)
    if output.logprobs or output.prompt_logprobs:  # rarely
        for entries in (output.logprobs, output.prompt_logprobs):
            size += _LOGPROB_BYTES * sum(1 + len(entry.top) for entry in entries)
    return size
