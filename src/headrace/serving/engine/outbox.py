"""What the engine process sends: updates from short steps are coalesced if an interval is set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.core.types import Output
from headrace.serving.requests.completion import entries
from headrace.serving.system import Clock
from headrace.serving.wire.connection import Connection
from headrace.serving.wire.messages import Message, Outputs

MAX_ENTRIES_PER_MESSAGE = 512
"""Tokens and log-probabilities after which a step's outputs continue in another message, so that the server can serve
other callers between two messages. They take about 10 KB, and one or two milliseconds to turn into an answer."""

_OUTPUT_ENTRIES = 4  # what an output costs beside its entries, in entries
_STATS_ENTRIES = 8


class Outbox:
    """Sends messages in order; the updates of steps that end within `interval_s` seconds go out together.

    Every message wakes the server, which then writes an event to every reader; if a step takes a millisecond, that
    takes much of the machine. The tokens that a completion gained meanwhile become one update, and so one event. Steps
    longer than half the interval are sent one by one, and the first and last updates of a completion at once. 0 sends
    every step by itself.
    """

    def __init__(self, connection: Connection, clock: Clock, interval_s: float) -> None:
        self._connection = connection
        self._clock = clock
        self._interval_s = interval_s
        self._held: list[Output] = []
        self._held_steps = 0
        self._sent = 0.0  # when updates were last sent
        self._stepped = 0.0  # when the last step ended
        self._begun: set[str] = set()  # requests that have given a token

    def add(self, outputs: list[Output]) -> None:
        """The updates of a step that has just ended."""
        now = self._clock()
        step_s, self._stepped = now - self._stepped, now
        self._held += outputs
        self._held_steps += 1
        urgent = sum(map(self._is_urgent, outputs))  # every output is noted
        # The next step may take as long as this one did.
        if urgent or now + step_s > self._sent + self._interval_s:
            self.flush()
            self._sent = now

    def send(self, *messages: Message) -> None:
        """Send messages after all that is held. Raises as `Connection.send`."""
        held, self._held = self._held, []
        steps, self._held_steps = self._held_steps, 0
        if steps > 1:
            held = merged(held)
        self._connection.send(*in_messages(held), *messages)

    def flush(self) -> None:
        """Send held updates: there may be no next step, or not soon."""
        if self._held:
            self.send()

    def forget(self, key: str) -> None:
        """A request has no more updates."""
        self._begun.discard(key)

    def _is_urgent(self, output: Output) -> bool:
        if output.finish_reason is not None:
            self._begun.discard(output.request_id)
            return True
        begins = output.request_id not in self._begun
        self._begun.add(output.request_id)
        return begins


def merged(outputs: Iterable[Output]) -> list[Output]:
    """The updates of each completion as one, or as several if they exceed a message."""
    found: list[Output] = []
    last: dict[tuple[str, int], tuple[int, int]] = {}  # (request, completion) -> index in `found`, entries
    for later in outputs:
        key, size = (later.request_id, later.index), entries(later)
        at, before = last.get(key, (-1, 0))
        if at < 0 or before + size > MAX_ENTRIES_PER_MESSAGE:
            last[key] = len(found), size
            found.append(later)
        else:
            last[key] = at, before + size
            found[at] = _joined(found[at], later)
    return found


def _joined(earlier: Output, later: Output) -> Output:
    """Only the last update of a completion has an end, an error or a vector."""
    return later._replace(
        tokens=earlier.tokens + later.tokens,
        logprobs=earlier.logprobs + later.logprobs,
        prompt_logprobs=earlier.prompt_logprobs + later.prompt_logprobs,
        stats=later.stats or earlier.stats,
    )


def in_messages(outputs: Iterable[Output]) -> Iterator[Outputs]:
    """One message, or several if the outputs of a step are large."""
    batch: list[Output] = []
    size = 0
    for output in outputs:
        for part in _split(output) if output.prompt_logprobs else (output,):
            size += _OUTPUT_ENTRIES + entries(part) + len(part.pooled or b"") // 4
            size += 0 if part.stats is None else _STATS_ENTRIES
            batch.append(part)
            if size >= MAX_ENTRIES_PER_MESSAGE:
                yield Outputs(tuple(batch))
                batch, size = [], 0
    if batch:
        yield Outputs(tuple(batch))


def _split(output: Output) -> Iterator[Output]:
    """Log-probabilities of a prompt in parts that fit a message; everything else comes with the last part."""
    scored = output.prompt_logprobs
    positions = max(1, MAX_ENTRIES_PER_MESSAGE // (1 + max(len(entry.top) for entry in scored)))
    at = 0
    while len(scored) - at > positions:
        yield Output(output.request_id, output.index, prompt_logprobs=scored[at : at + positions])
        at += positions
    yield output._replace(prompt_logprobs=scored[at:])
