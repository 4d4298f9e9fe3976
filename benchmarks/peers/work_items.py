"""The work that every engine is given: seeded prompts of token ids, and the number of output tokens of each.

Standard library only, because drivers import it in the peers' environments.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SMALLEST_VOCABULARY = 32_000
WARM_UP_PROMPT, WARM_UP_OUTPUTS = 16, 4
_FIRST_ID = 259  # after the special tokens and bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt of token ids and the number of output tokens, greedy, running past any end of sequence."""

    prompt: tuple[int, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the table. `metric` is its name in headrace.bench.metrics; lower is better for times and bytes."""

    name: str
    heading: str
    metric: str
    meaning: str
    lower_is_better: bool = False


_DECODE = "decode_tokens_per_s"
COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        column.name: column
        for column in (
            Column("prefill", "prefill 1024", "prefill_tokens_per_s", "prompt tokens a second of one prompt of 1024"),
            Column("decode1", "decode B=1", _DECODE, "output tokens a second, one sequence"),
            Column("decode8", "decode B=8", _DECODE, "output tokens a second, 8 sequences at once"),
            Column("decode32", "decode B=32", _DECODE, "output tokens a second, 32 sequences at once"),
            Column("mixed", "mixed", "output_tokens_per_s", "output tokens a second, prompts included"),
            Column("startup", "start-up", "startup_s", "launch of the process to its first token", True),
            Column("memory", "peak memory", "peak_rss_bytes", "peak resident memory, loading included", True),
        )
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run does; the defaults are what the published table uses."""

    prefill: int = 1024
    prompt: int = 128
    outputs: int = 64
    mixed_requests: int = 8
    mixed_prompts: tuple[int, int] = (32, 1024)
    mixed_outputs: tuple[int, int] = (16, 256)

    @property
    def longest(self) -> int:
        """Most tokens of one sequence."""
        mixed = self.mixed_prompts[1] + self.mixed_outputs[1]
        return max(self.prefill + 1, self.prompt + self.outputs, mixed)


def sizes_from_json(data: Mapping[str, Any]) -> Sizes:
    """Sizes from their fields as JSON gives them back, pairs as lists."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return Sizes(**fields)


def requests(column: str, sizes: Sizes, seed: int = 0) -> list[Request]:
    """The work of a column. Another `seed` gives other prompts of the same lengths, for the warm-up."""
    rng = random.Random(f"{column}-lengths")
    if column == "mixed":
        lengths = [
            (rng.randint(*sizes.mixed_prompts), rng.randint(*sizes.mixed_outputs))
            for _ in range(sizes.mixed_requests)
        ]
    elif column == "prefill":
        lengths = [(sizes.prefill, 1)]
    elif column == "startup":
        lengths = [(min(16, sizes.prompt), 1)]
    else:
        batch = {"decode1": 1, "decode8": 8, "decode32": 32, "memory": 8}[column]
        lengths = [(sizes.prompt, sizes.outputs)] * batch
    ids = random.Random(f"{column}-ids-{seed}")
    return [
        Request(tuple(ids.randrange(_FIRST_ID, SMALLEST_VOCABULARY) for _ in range(prompt)), outputs)
        for prompt, outputs in lengths
    ]


def warm_up_requests(column: str, sizes: Sizes) -> list[Request]:
    """Other prompts that make an engine compile and allocate what the column needs: its batch size, few outputs.

    Decode columns count no prompt token, so their warm-up has short prompts.
    """
    work = requests(column, sizes, seed=1)
    if column == "mixed":
        work = work[:2]
    longest = sizes.prefill if column in ("prefill", "mixed") else WARM_UP_PROMPT
    return [Request(one.prompt[:longest], min(one.outputs, WARM_UP_OUTPUTS)) for one in work]


def figure(
    column: str, work: Sequence[Request], begin_s: float, token_times: Sequence[Sequence[float]]
) -> float:
    """The figure of a column, from the time of every token of every request, on the clock of `begin_s`.

    Decode counts the tokens that come after every sequence has had its first one, over the time they take, so that no
    engine gains or loses by the order in which it reads the prompts. Raises ValueError where tokens are missing.
    """
    for request, times in zip(work, token_times, strict=True):
        if len(times) != request.outputs:
            raise ValueError(f"a request of {request.outputs} output tokens gave {len(times)}")
    last = max(times[-1] for times in token_times)
    all_started = max(times[0] for times in token_times)
    if column == "prefill":
        return sum(len(request.prompt) for request in work) / (all_started - begin_s)
    if column == "mixed":
        return sum(request.outputs for request in work) / (last - begin_s)
    after = sum(time > all_started for times in token_times for time in times)
    return after / (last - all_started)
