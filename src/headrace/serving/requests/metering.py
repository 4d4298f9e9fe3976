"""The usage of a request, reported once to its meter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of one request; the one definition of what is charged and counted.

    prompt_tokens: prompt positions whose KV was computed or taken from the prefix cache; the whole prompt unless the
    request ended during its prefill or before. cached_tokens: of these, the ones from the prefix cache.
    outputs: output tokens by completion. One that was read to its end counts the tokens of its answer, so none after a
    stop string; one that was left counts the tokens that the engine generated. delivered_tokens: of all these, the
    ones that the reader took.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    outputs: tuple[int, ...] = ()
    delivered_tokens: int = 0

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Meter(Protocol):
    """Follows one request from its submission to its settlement. Calls come from the client's event loop."""

    def renew(self, output_tokens: int) -> int:
        """There is more output than was charged. Returns the number of output tokens that is charged now."""
        ...

    def release(self) -> None:
        """The request has ended for its caller. Called once."""
        ...

    def settle(self, used: Used) -> None:
        """The engine has freed the request, and its caller has read everything. Called once, last."""
        ...


class ReadCounts(Protocol):
    """The reader's view of a request's completions."""

    def counted(self, index: int) -> tuple[int, bool]:
        """Tokens that were read of completion `index`, and whether it has ended for the reader."""
        ...
