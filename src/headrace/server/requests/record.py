"""The record of one HTTP request: filled in while it is served, read at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.params import SamplingParams
from headrace.server.http.exchange import Exchange, current_exchange
from headrace.server.http.headers import request_id
from headrace.server.requests.tallies import Tallies
from headrace.serving.requests.completion import Delta
from headrace.serving.requests.generation import Generation
from headrace.serving.requests.metering import Used
from headrace.serving.requests.outputs import RequestMetrics
from headrace.serving.system import Clock


def current() -> RequestRecord | None:
    """The record of the current request; None outside of one."""
    exchange = current_exchange()
    return exchange if isinstance(exchange, RequestRecord) else None


@dataclass(slots=True)
class Seen:
    """A completion so far: its number of tokens, and the time of the last one."""

    tokens: int
    last: float


@dataclass(slots=True)
class Work:
    """The work of a request at the engine. `prompt_tokens`, `generations`: one entry a prompt.

    Completion i of prompt p is choice p * n + i.
    """

    name: str
    params: SamplingParams
    prompt_tokens: tuple[int, ...]
    generations: tuple[Generation, ...]
    stream: bool
    reasons: dict[int, str] = field(default_factory=dict)  # by choice
    seen: dict[int, Seen] = field(default_factory=dict)  # by choice

    @property
    def metrics(self) -> list[RequestMetrics | None]:
        """None for a prompt with completions that have not ended."""
        return [generation.metrics for generation in self.generations]

    @property
    def finish_reasons(self) -> list[str | None]:
        """One entry a choice; None for one that has not ended."""
        return [self.reasons.get(choice) for choice in range(len(self.generations) * self.params.n)]

    @property
    def output_tokens(self) -> int:
        return sum(seen.tokens for seen in self.seen.values())


class RequestRecord(Exchange):
    """Times in seconds by `clock`; `started` is Unix time. It contains no text of prompts or outputs."""

    __slots__ = (
        "arrived", "caller", "clock", "embedded", "ended", "first", "headers", "method", "route", "started", "status",
        "tallies", "work",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        headers: Sequence[tuple[bytes, bytes]],
        tallies: Tallies,
        clock: Clock,
        started: float,
    ) -> None:
        super().__init__(request_id(headers))
        self.clock = clock
        self.arrived = clock()
        self.started = started
        self.ended: float | None = None  # the last part of the answer was sent
        self.first: float | None = None  # token
        self.method = method
        self.headers = headers
        self.route: str | None = None  # None without a route
        self.status: int | None = None  # None if the answer had not begun
        self.caller = ""
        self.work: Work | None = None
        self.embedded: tuple[int, int] | None = None  # (prompt tokens, cached ones)
        self.tallies = tallies

    def began(
        self,
        name: str,
        params: SamplingParams,
        prompt_tokens: Sequence[int],
        generations: Sequence[Generation],
        stream: bool,
    ) -> None:
        """The engine has accepted the request."""
        self.work = Work(name, params, tuple(prompt_tokens), tuple(generations), stream)

    def gave_vectors(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Prompts were embedded."""
        self.embedded = (prompt_tokens, cached_tokens)

    def settled(self, used: Used) -> None:
        """Count what one of the prompts used, without output tokens that `on_delta` has counted."""
        tallies = self.tallies
        tallies.prompt_tokens += used.prompt_tokens
        tallies.cached_tokens += used.cached_tokens
        tallies.generation_tokens += used.output_tokens - used.delivered_tokens
        if self.work is None or not used.prompt_tokens:
            return
        tallies.prompt_length.observe(used.prompt_tokens)
        tallies.computed_length.observe(used.prompt_tokens - used.cached_tokens)
        tallies.longest_output.observe(max(used.outputs))
        for tokens in filter(None, used.outputs):
            tallies.output_length.observe(tokens)

    def on_delta(self, choice: int, delta: Delta) -> None:
        """Count an addition to a choice. Called for every token."""
        work, tallies = self.work, self.tallies
        if work is None:
            return
        count = len(delta.token_ids)
        if count:
            now = self.clock()
            seen = work.seen.get(choice)
            if seen is None:
                work.seen[choice] = Seen(count, now)
                if self.first is None:
                    self.first = now
                    tallies.ttft.observe(now - self.arrived)
                    if work.stream:
                        tallies.recent_ttft.add(now, now - self.arrived)
            else:
                tallies.itl.observe(now - seen.last)
                if work.stream:
                    tallies.recent_itl.add(now, now - seen.last)
                seen.last = now
                seen.tokens += count
            tallies.generation_tokens += count
        if delta.finish_reason is not None:
            work.reasons[choice] = delta.finish_reason

    @property
    def ttft_s(self) -> float | None:
        return None if self.first is None else self.first - self.arrived

    @property
    def e2e_s(self) -> float:
        """Arrival to the end of the answer, or to now."""
        return (self.clock() if self.ended is None else self.ended) - self.arrived

    @property
    def aborted(self) -> bool:
        """The caller left before the answer was complete."""
        if self.work is not None:
            return self.error is None and None in self.work.finish_reasons
        return self.status in (None, 499)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from the prefix cache, known so far."""
        if self.work is None:
            return 0
        return sum(one.num_cached_tokens for one in self.work.metrics if one is not None)

    @property
    def queue_s(self) -> float | None:
        """The longest wait of a prompt."""
        if self.work is None:
            return None
        waits = [one.queue_s for one in self.work.metrics if one is not None]
        return max((wait for wait in waits if wait is not None), default=None)
