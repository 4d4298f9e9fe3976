"""How many prompt tokens a step may compute while sequences decode: asked of something that knows what steps cost."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.core.types import StepPlan


class StepLoad(NamedTuple):
    """What a step has to do besides prompts: `decoding` sequences hold `keys` tokens together and compute `rows`
    tokens, drafts included. `prompts`: requests whose prompt is not computed and that may run, waiting ones included.
    """

    decoding: int
    rows: int
    keys: int
    prompts: int


class StepBudget(Protocol):
    """Bounds the prompt tokens of steps in which some sequence decodes. The contract:

    - It changes how prompts are cut into chunks, and nothing else: no token depends on it.
    - Every step makes progress with a prompt: at least one token is granted, whatever `tokens` returns.
    - A schedule under a budget that reads measured times is not reproducible.
    """

    def tokens(self, load: StepLoad) -> int:
        """The most prompt tokens of the next step."""
        ...

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long, from its plan to its result."""
        ...
