"""What a sampler returns for a batch of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from headrace.core.record import record
from headrace.core.types import UNFULFILLABLE, TokenLogprobs

NO_TOKEN = -1

NAN_LOGITS = "the model computed logits that are not numbers (NaN) for this sequence"
INFINITE_LOGITS = "the model computed infinite logits for this sequence"
NO_LOGITS = "the model gave no token of the vocabulary a finite logit"
NOTHING_LEFT = UNFULFILLABLE + (
    "grammar, allowed and banned tokens, bad words, stop tokens and logit_bias leave no token to choose from"
)


@record
class SampleOutput:
    """Tokens of R rows. A row that failed has NO_TOKEN, no log-probabilities and a sentence in `errors`."""

    tokens: list[int]
    logprobs: tuple[TokenLogprobs | None, ...] | None = None  # [R]; None when no row asked
    errors: dict[int, str] = field(default_factory=dict)  # row -> what went wrong


def reject(tokens: list[int], highest: Sequence[float]) -> dict[int, str]:
    """Discard the tokens of rows whose highest logit is not finite; returns row -> reason."""
    errors: dict[int, str] = {}
    for row, value in enumerate(highest):
        if not math.isfinite(value):
            tokens[row] = NO_TOKEN
            errors[row] = NAN_LOGITS if math.isnan(value) else INFINITE_LOGITS if value > 0 else NO_LOGITS
    return errors
