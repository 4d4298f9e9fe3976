"""A setting that keeps a promise, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.sim.planner.money import DAY_S, HOUR_S, MILLION
from headrace.sim.simulate.candidates import Candidate
from headrace.sim.simulate.tally import Tally


@dataclass(frozen=True, slots=True)
class Setting:
    """The fewest machines of a candidate that keep the promise.

    requests_per_s: turns of conversations included. prompt_share: of the time of busy engines. fewer: what one machine
    fewer breaks; None where there is one machine.
    """

    candidate: Candidate
    machines: int
    tally: Tally
    requests_per_s: float
    prompt_share: float
    fewer: str | None

    @property
    def replicas(self) -> int:
        return self.machines * self.candidate.copies

    @property
    def cost_per_hour(self) -> float:
        """Of whole machines, idle time included."""
        return self.machines * self.candidate.price

    @property
    def requests_per_day(self) -> float:
        return self.requests_per_s * DAY_S

    @property
    def within(self) -> float:
        """The share of requests that kept every limit."""
        return self.tally.within / max(1, self.tally.sent)

    @property
    def rank(self) -> tuple[float, ...]:
        """Smaller is better: by cost, then wider weights, fewer devices an engine, and more requests within it."""
        return (self.cost_per_hour, -self.candidate.weight_bytes, self.candidate.tp, -self.within)

    @property
    def cost_per_million_output(self) -> float:
        """Of output tokens: the part of the machines' price that decoding has of the busy time."""
        return self._cost(1 - self.prompt_share, self.tally.output_tokens)

    @property
    def cost_per_million_input(self) -> float:
        """Of prompt tokens, those from the prefix cache included."""
        return self._cost(self.prompt_share, self.tally.prompt_tokens)

    def _cost(self, share: float, tokens: int) -> float:
        per_s = self.requests_per_s * tokens / max(1, self.tally.answered)
        return MILLION * share * self.cost_per_hour / HOUR_S / per_s if per_s else 0.0

    def values(self) -> dict[str, float]:
        """The figures of a row of results."""
        return self.tally.values() | {
            "cost_per_hour": self.cost_per_hour,
            "cost_per_million_output": self.cost_per_million_output,
            "cost_per_million_input": self.cost_per_million_input,
            "requests_per_day": self.requests_per_day,
        }
