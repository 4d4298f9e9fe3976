"""What the engine process has to say: tokens of very short steps are told of together."""

from __future__ import annotations

from headrace.core.types import Output
from headrace.serving.clock import Clock
from headrace.serving.connection import Connection
from headrace.serving.messages import Message
from headrace.serving.translate import outputs_to_wire


class Outbox:
    """Sends messages in order; several steps are told of together where they end within `interval_s` seconds.

    Every message wakes the server, and that every reader; where a step takes a millisecond, much of the machine would
    be busy with telling of it. Steps of more than half the interval are told of one by one, and the first and last
    news of a completion at once. 0 tells of every step by itself.
    """

    def __init__(self, connection: Connection, clock: Clock, interval_s: float) -> None:
        self._connection = connection
        self._clock = clock
        self._interval_s = interval_s
        self._held: list[Output] = []
        self._sent = 0.0  # when news was last sent
        self._stepped = 0.0  # when the last step ended
        self._begun: set[str] = set()  # requests that have given a token

    def add(self, outputs: list[Output]) -> None:
        """The news of a step that has just ended."""
        now = self._clock()
        step_s, self._stepped = now - self._stepped, now
        self._held += outputs
        urgent = sum(map(self._is_urgent, outputs))  # which looks at all of them
        # The next step may take as long as this one did.
        if urgent or now + step_s > self._sent + self._interval_s:
            self.flush()
            self._sent = now

    def send(self, *messages: Message) -> None:
        """Send messages behind all that is held. Raises as `Connection.send`."""
        held, self._held = self._held, []
        self._connection.send(*outputs_to_wire(held), *messages)

    def flush(self) -> None:
        """Send what is held: there may be no next step, or not soon."""
        if self._held:
            self.send()

    def forget(self, request_id: str) -> None:
        """A request gives no more news."""
        self._begun.discard(request_id)

    def _is_urgent(self, output: Output) -> bool:
        if output.finish_reason is not None:
            self._begun.discard(output.request_id)
            return True
        begins = output.request_id not in self._begun
        self._begun.add(output.request_id)
        return begins
