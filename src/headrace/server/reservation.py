"""What one request holds of the queue and of its key's tokens, from its admission to its settlement."""

from __future__ import annotations

from headrace.core.types import NewRequest
from headrace.server.caller import Caller
from headrace.server.seeing.record import RequestRecord
from headrace.server.traffic import Traffic
from headrace.serving.cost import Cost
from headrace.serving.metering import Used

LEASE = 64
"""Output tokens that are paid for at a time once a request has outgrown its estimate."""


class Reservation:
    """A Meter. Admitted at `cost`; charged more as the output outgrows it; in the end what was used is what counts.

    The queue gets its room back when the request has ended for its caller. The key is charged, and usage and metrics
    are counted, when the engine has reported what it computed, which is a step later where the caller left.
    """

    def __init__(
        self, traffic: Traffic, caller: Caller, new: NewRequest, cost: Cost, record: RequestRecord | None
    ) -> None:
        self._traffic = traffic
        self._caller = caller
        self._new = new
        self._cost = cost
        self._record = record
        self._paid = cost.output
        self._held = True  # of the queue
        self._settled = False

    def renew(self, output_tokens: int) -> int:
        """See Meter."""
        lacking = output_tokens - self._paid
        if lacking > 0:
            more = -(-lacking // LEASE) * LEASE
            self._paid += more
            if self._traffic.admission is not None:
                self._traffic.admission.charge(more)
            self._traffic.limiter.charge_tokens(self._caller, more)
        return self._paid

    def release(self) -> None:
        """See Meter."""
        if self._held and self._traffic.admission is not None:
            self._traffic.admission.give_back(self._cost.completions, self._cost.prompt + self._paid)
        self._held = False

    def settle(self, used: Used) -> None:
        """See Meter."""
        if self._settled:
            return
        self._settled = True
        self._traffic.limiter.return_tokens(self._caller, self._cost.prompt + self._paid - used.total)
        usage = self._traffic.usage.of(self._caller.name)
        usage.prompt_tokens += used.prompt_tokens
        usage.cached_tokens += used.cached_tokens
        usage.completion_tokens += used.output_tokens
        if self._record is not None:
            self._record.settled(used)
        if used.output_tokens:
            self._traffic.estimate.learn(used.output_tokens / self._new.params.n)

    def cancel(self) -> None:
        """The engine was not asked, or has refused: nothing was computed."""
        self.release()
        self.settle(Used())
