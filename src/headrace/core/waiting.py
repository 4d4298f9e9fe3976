"""The waiting queue: which request is next, under each order."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from headrace.core.policy import Order
from headrace.core.request import Request

MAX_DEPARTED = 4096
"""Departures that are kept. Callers choose user names, so the number is bounded."""


class ServiceCounter:
    """Tokens computed for each user, over the user's weight: the virtual counter of token-fair scheduling (Sheng et
    al. 2024).

    A user who returns after a pause is raised to the count of the least served active user: idling earns no credit.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._active: dict[str, int] = {}  # user -> unfinished requests
        self._departed: list[tuple[float, str]] = []
        """A heap of users who have left at least once, by their count when they left."""
        self._listed: set[str] = set()  # users in it

    def __len__(self) -> int:
        """Counters or departures kept, whichever are more."""
        return max(len(self._served), len(self._departed))

    def served(self, user: str) -> float:
        return self._served.get(user, 0.0)

    def arrive(self, user: str) -> None:
        if user not in self._active:
            self._served[user] = max(self.served(user), self._floor())
        self._active[user] = self._active.get(user, 0) + 1

    def leave(self, user: str) -> None:
        """One request of the user has ended."""
        self._active[user] -= 1
        if self._active[user]:
            return
        del self._active[user]
        if not self._active:  # no active user to compare with
            self._served.clear()
            self._departed.clear()
            self._listed.clear()
            return
        if user not in self._listed:
            self._listed.add(user)
            heapq.heappush(self._departed, (self.served(user), user))
        # A user not ahead of the active ones would return at their level anyway, so its counter can be dropped.
        floor = self._floor()
        while self._departed and (self._departed[0][0] <= floor or len(self._departed) > MAX_DEPARTED):
            self._forget_departed(floor)

    def _forget_departed(self, floor: float) -> None:
        """Drop the first departure, and the counter with it; or move it to where its user stands now."""
        then, user = heapq.heappop(self._departed)
        served = self.served(user)
        if user not in self._active and served > max(then, floor):  # came back meanwhile
            heapq.heappush(self._departed, (served, user))
            return
        self._listed.discard(user)
        if user not in self._active:
            self._served.pop(user, None)

    def charge(self, user: str, tokens: int, weight: float = 1.0) -> None:
        self._served[user] = self.served(user) + tokens / weight

    def _floor(self) -> float:
        return min((self.served(user) for user in self._active), default=0.0)


class WaitingQueue:
    """Requests sorted by urgency within buckets: one bucket a user under the fair order, else one for all."""

    def __init__(self, order: Order, service: ServiceCounter) -> None:
        self._order = order
        self._service = service
        self._buckets: dict[str, list[tuple[tuple[int, int, int], Request]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for bucket in self._buckets.values():
            for _, request in bucket:
                yield request

    def add(self, request: Request) -> None:
        insort(self._buckets.setdefault(self._bucket(request), []), (self._key(request), request))
        self._count += 1

    def remove(self, request: Request) -> None:
        name = self._bucket(request)
        bucket = self._buckets[name]
        at = bisect_left(bucket, self._key(request), key=lambda entry: entry[0])
        if at == len(bucket) or bucket[at][1] is not request:
            raise ValueError(f"request {request.name} is not waiting")
        del bucket[at]
        if not bucket:
            del self._buckets[name]
        self._count -= 1

    def head(self) -> Request | None:
        """The next request: the most urgent one of the least served bucket."""
        if not self._buckets:
            return None
        name = min(self._buckets, key=lambda user: (self._service.served(user), self._buckets[user][0][0]))
        return self._buckets[name][0][1]

    def sort_key(self, request: Request) -> tuple[float, tuple[int, int, int]]:
        """Position of any request, running ones too, in the present order."""
        return (self._service.served(self._bucket(request)), self._key(request))

    def _bucket(self, request: Request) -> str:
        return request.user if self._order is Order.FAIR else ""

    def _key(self, request: Request) -> tuple[int, int, int]:
        priority, number, index = request.order
        return (0 if self._order is Order.FCFS else priority, number, index)
