"""Which grammar is compiled next: users take turns, and a grammar that several ask for is compiled once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from headrace.core.grammar import Grammar
from headrace.errors import Overloaded

MAX_WAITING_OF_USER = 64
"""Most different grammars of one user that wait to be compiled."""
MAX_WAITING = 256
"""The same of all users, with those in work."""


@dataclass(slots=True, eq=False)
class Job:
    """A grammar to compile, and who waits for it."""

    grammar: Grammar
    waiting: dict[str, str] = field(default_factory=dict)
    """Ids of requests -> their users."""
    taken_for: str | None = None
    """The user whose turn it was; None while the job is in the queue."""


class FairQueue:
    """Jobs for `workers` that compile at once. Not thread-safe, and knows no time.

    Users take turns, and whoever has just been served stands behind all others, so that a user with one grammar waits
    for no more than one of each other user. The last free worker is kept for a user who has none at work: with two
    workers or more, the grammars of a single user never make another one wait. A job that several users ask for stands
    in the line of each of them.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._jobs: dict[Grammar, Job] = {}  # in the queue or in work
        self._lines: OrderedDict[str, OrderedDict[Job, None]] = OrderedDict()  # first whose turn is next
        self._working: Counter[str] = Counter()  # jobs in work by user

    @property
    def working(self) -> int:
        """Jobs that were taken and are not done."""
        return self._working.total()

    @property
    def users(self) -> int:
        """Users about whom anything is kept."""
        return len(self._lines.keys() | self._working.keys())

    def __len__(self) -> int:
        """Jobs that wait to be taken or to be done."""
        return len(self._jobs)

    def join(self, grammar: Grammar, request_id: str, user: str) -> Job:
        """Wait for a grammar. Raises Overloaded where the user has too many in the queue, or all have."""
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
        """A request does not wait any more. What nobody waits for leaves the queue; what is in work goes on."""
        user = job.waiting.pop(request_id, None)
        if user is None or job.taken_for is not None or user in job.waiting.values():
            return
        self._leave_line(user, job)
        if not job.waiting:
            del self._jobs[job.grammar]

    def next_user(self) -> str | None:
        """Whose turn it is; None where nobody can be served now."""
        free = self._workers - self.working
        if free > 0:
            for user in self._lines:
                if free > 1 or not self._working[user]:
                    return user
        return None

    def take(self) -> Job | None:
        """The next job, which is then in work; None where there is none for now."""
        user = self.next_user()
        if user is None:
            return None
        job = next(iter(self._lines[user]))
        for other in set(job.waiting.values()):
            self._leave_line(other, job)
        job.taken_for = user
        self._working[user] += 1
        self._stand_behind(user)
        return job

    def done(self, job: Job) -> None:
        """A job that was taken has ended, in whatever way."""
        user = job.taken_for
        assert user is not None
        del self._jobs[job.grammar]
        self._working[user] -= 1
        if not self._working[user]:
            del self._working[user]
        self._stand_behind(user)  # of those, too, who have come meanwhile

    def _leave_line(self, user: str, job: Job) -> None:
        line = self._lines[user]
        del line[job]
        if not line:
            del self._lines[user]

    def _stand_behind(self, user: str) -> None:
        if user in self._lines:
            self._lines.move_to_end(user)
