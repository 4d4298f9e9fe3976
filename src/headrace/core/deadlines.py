"""When requests expire: before they were ever scheduled, or before they ended."""

from __future__ import annotations

import heapq

from headrace.core.request import Request

_SPARE = 64  # entries of ended requests that may lie in the heap at any size


class Deadlines:
    """A heap of deadlines. Entries of ended requests are removed once they are the majority."""

    def __init__(self) -> None:
        self._live: dict[int, Request] = {}
        self._heap: list[tuple[float, int]] = []  # (time, number of the request)

    def __len__(self) -> int:
        """Requests that may still expire."""
        return len(self._live)

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline at all."""
        for time in (request.start_by, request.finish_by):
            if time is not None:
                heapq.heappush(self._heap, (time, request.number))
                self._live[request.number] = request

    def discard(self, request: Request) -> None:
        """Forget a request that has ended."""
        if (
            self._live.pop(request.number, None) is not None
            and len(self._heap) > 4 * len(self._live) + _SPARE
        ):
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def expired(self, now: float) -> list[tuple[Request, str]]:
        """Requests that have expired by `now`, with the reason; each is returned once and then removed."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            time, number = heapq.heappop(self._heap)
            request = self._live.get(number)
            if request is not None and (why := _reason(request, time)) is not None:
                del self._live[number]
                found.append((request, why))
        return found

    @property
    def next(self) -> float | None:
        """A time before which no request expires."""
        return self._heap[0][0] if self._heap else None


def _reason(request: Request, time: float) -> str | None:
    """Why the request expires at this deadline; None where it was scheduled before its queue timeout."""
    if request.finish_by is not None and time >= request.finish_by:
        return f"the request did not end within {request.finish_by - request.stats.arrival_s:g} s"
    if request.started:
        return None
    return f"the request waited for {time - request.stats.arrival_s:g} s without being scheduled"
