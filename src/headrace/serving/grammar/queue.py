"""Fair order of compilation: users take turns, and a grammar that several users need is compiled once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from headrace.core.grammar import Grammar
from headrace.errors import Overloaded

MAX_WAITING_OF_USER = 64
"""Most distinct grammars of one user that wait to be compiled."""
MAX_WAITING = 256
"""The same for all users, including jobs that run."""


@dataclass(slots=True, eq=False)
class Job:
    """A grammar to compile, and the requests that wait for it."""

    grammar: Grammar
    waiting: dict[str, str] = field(default_factory=dict)
    """Ids of requests -> their users."""
    taken_for: str | None = None
    """The user whose turn it was; None while the job is queued."""


class FairQueue:
    """Jobs for `workers` that compile at once. Not thread-safe; uses no clock.

    Users take turns in round-robin order, so a user with one grammar waits for at most one of each other user. The last
    free worker is reserved for a user without a running job: with two workers or more, the grammars of a single user
    never delay another user. A job that several users need is in the line of each of them.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._jobs: dict[Grammar, Job] = {}  # queued or running
        self._lines: OrderedDict[str, OrderedDict[Job, None]] = OrderedDict()  # in the order of turns
        self._working: Counter[str] = Counter()  # running jobs by user

    @property
    def working(self) -> int:
        """Number of running jobs."""
        return self._working.total()

    @property
    def users(self) -> int:
        """Number of users with queued or running jobs."""
        return len(self._lines.keys() | self._working.keys())

    def __len__(self) -> int:
        """Queued and running jobs."""
        return len(self._jobs)

    def join(self, grammar: Grammar, request_id: str, user: str) -> Job:
        """Enqueue a request's grammar. Raises Overloaded if the user has too many in the queue, or all users have."""
        job = self._jobs.get(grammar)
        if job is None or job.taken_for is None:
            line = self._lines.get(user, ())
            if job not in line and len(line) >= MAX_WAITING_OF_USER:
                raise Overloaded("too many of your grammars wait to be compiled; try again later")
            if job is None:
                if len(self._jobs) >= MAX_WAITING:
                    raise Overloaded("too many grammars wait to be compiled; try again later")
                job = self._jobs[grammar] = Job(grammar)
            self._lines.setdefault(user, OrderedDict())[job] = None
        job.waiting[request_id] = user
        return job

    def leave(self, job: Job, request_id: str) -> None:
        """A request no longer waits. A job without requests leaves the queue; a running one continues."""
        user = job.waiting.pop(request_id, None)
        if user is None or job.taken_for is not None or user in job.waiting.values():
            return
        self._leave_line(user, job)
        if not job.waiting:
            del self._jobs[job.grammar]

    def next_user(self) -> str | None:
        """The user whose turn it is; None if no user can be served now."""
        free = self._workers - self.working
        if free > 0:
            for user in self._lines:
                if free > 1 or not self._working[user]:
                    return user
        return None

    def take(self) -> Job | None:
        """The next job, which then runs; None if there is none for now."""
        user = self.next_user()
        if user is None:
            return None
        job = next(iter(self._lines[user]))
        for other in set(job.waiting.values()):
            self._leave_line(other, job)
        job.taken_for = user
        self._working[user] += 1
        self._move_to_end(user)
        return job

    def done(self, job: Job) -> None:
        """A running job has ended."""
        user = job.taken_for
        assert user is not None
        del self._jobs[job.grammar]
        self._working[user] -= 1
        if not self._working[user]:
            del self._working[user]
        self._move_to_end(user)  # also after users that came meanwhile

    def _leave_line(self, user: str, job: Job) -> None:
        line = self._lines[user]
        del line[job]
        if not line:
            del self._lines[user]

    def _move_to_end(self, user: str) -> None:
        if user in self._lines:
            self._lines.move_to_end(user)
