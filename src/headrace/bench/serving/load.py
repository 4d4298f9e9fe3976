"""Puts a server under load: sends requests when they are due, and records how each one ended."""

from __future__ import annotations

import asyncio
import enum
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.bench.serving.http_client import HttpError, Pool
from headrace.bench.serving.stream import EventBody, StreamError, error_message, read_stream
from headrace.bench.serving.target import Target
from headrace.sim.workload.sessions import Session, Turn

MAX_PAUSE_S = 5.0
"""Longest wait of a closed-loop client after a refusal; Retry-After is capped at this."""

_REFUSED = 429


class Ending(enum.Enum):
    ANSWERED = "answered"
    REFUSED = "refused"  # with 429: the server is overloaded
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Times in seconds: `sent_s` and `ended_s` after the start of the run, `late_s` sending after it was
    due, `ttft_s` and `gaps_s` (between pieces of text) as measured by this client. Token counts are the server's."""

    ending: Ending
    sent_s: float
    ended_s: float
    late_s: float = 0.0
    ttft_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    reason: str = ""

    @property
    def e2e_s(self) -> float:
        """Sent to the last piece of text."""
        return self.ttft_s + sum(self.gaps_s)

    @property
    def tpot_s(self) -> float | None:
        """(last piece - first piece) / (tokens - 1); None with fewer than two tokens."""
        return sum(self.gaps_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """`cpu_s`: CPU time of this client. `wall_s`: start of the run to the end of its last request."""

    outcomes: tuple[Outcome, ...]
    wall_s: float
    cpu_s: float


OnDone = Callable[[Outcome], None]


class Load:
    """One run against a server."""

    def __init__(
        self, target: Target, *, max_concurrency: int | None, timeout_s: float, on_done: OnDone
    ) -> None:
        self._target = target
        self._pool = Pool(target.address)
        self._slots = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._timeout_s = timeout_s
        self._on_done = on_done
        self._outcomes: list[Outcome] = []
        self._start = time.perf_counter()
        self._cpu = time.process_time()

    async def timetable(self, sessions: Iterator[Session], times: Sequence[float]) -> Loaded:
        """Begin a session at each of the times, in seconds from now, whether or not the earlier ones have ended."""
        self._begin()
        running: set[asyncio.Task[float]] = set()
        for due, session in zip(times, sessions, strict=False):
            wait = due - self._now()
            if wait > 0:
                await asyncio.sleep(wait)
            task = asyncio.ensure_future(self._session(session, due))
            running.add(task)
            task.add_done_callback(running.discard)
        while running:
            await asyncio.gather(*running)
        return self._loaded()

    async def closed(self, sessions: Iterator[Session], clients: int, seconds: float) -> Loaded:
        """A closed loop: each of `clients` starts a session when its previous one has ended, for `seconds`.

        A refused client waits for Retry-After plus up to half of it at random, so that clients that were refused
        together do not retry together.
        """
        self._begin()
        rng = random.Random(clients)

        async def client() -> None:
            while self._now() < seconds:
                pause = await self._session(next(sessions), self._now())
                if pause:
                    pause = min(pause, MAX_PAUSE_S) * rng.uniform(1.0, 1.5)
                    await asyncio.sleep(min(pause, max(0.0, seconds - self._now())))

        await asyncio.gather(*(client() for _ in range(clients)))
        return self._loaded()

    def _begin(self) -> None:
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _loaded(self) -> Loaded:
        self._pool.close()
        return Loaded(tuple(self._outcomes), self._now(), time.process_time() - self._cpu)

    async def _session(self, session: Session, due: float) -> float:
        """Run the turns until one is not answered; returns the seconds to wait after a refusal."""
        texts: list[str] = []
        for turn in session.turns:
            texts.append(turn.text)
            if self._slots is None:
                outcome, text, pause = await self._turn(texts, turn, due)
            else:
                async with self._slots:
                    outcome, text, pause = await self._turn(texts, turn, due)
            self._outcomes.append(outcome)
            self._on_done(outcome)
            if outcome.ending is not Ending.ANSWERED:
                return pause
            texts.append(text)
            due = self._now()
        return 0.0

    async def _turn(self, texts: Sequence[str], turn: Turn, due: float) -> tuple[Outcome, str, float]:
        """(how it ended, the answer's text, seconds to wait)."""
        request = self._target.request(texts, turn.max_tokens)
        body = EventBody()
        sent = time.perf_counter()
        sent_s = sent - self._start
        late_s = max(0.0, sent_s - due)

        def failed(reason: str) -> tuple[Outcome, str, float]:
            return Outcome(Ending.FAILED, sent_s, self._now(), late_s, reason=reason), "", 0.0

        try:
            async with asyncio.timeout(self._timeout_s):
                head = await self._pool.ask(request, body)
        except HttpError as error:
            return failed(str(error))
        except TimeoutError:
            return failed(f"no end of the answer within {self._timeout_s:g} s")
        ended_s = self._now()
        if head.status == _REFUSED:
            refused = Outcome(
                Ending.REFUSED, sent_s, ended_s, late_s, reason=error_message(head.status, body.data)
            )
            return refused, "", _seconds(head.headers.get("retry-after"))
        if head.status != 200:
            return failed(error_message(head.status, body.data))
        try:
            found = read_stream(body, turn.max_tokens)
        except StreamError as error:
            return failed(str(error))
        times = found.times
        outcome = Outcome(
            Ending.ANSWERED, sent_s, ended_s, late_s,
            ttft_s=times[0] - sent,
            gaps_s=tuple(after - before for before, after in itertools.pairwise(times)),
            prompt_tokens=found.prompt_tokens or 0,
            output_tokens=found.output_tokens,
        )  # fmt: skip
        return outcome, found.text, 0.0


def _seconds(text: str | None) -> float:
    """A Retry-After header; 1 where it is absent or a date."""
    return float(text) if text is not None and text.isdecimal() and len(text) < 6 else 1.0
