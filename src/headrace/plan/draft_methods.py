"""The option `speculative`: which drafters it names, and how many tokens they draft."""

from __future__ import annotations

from headrace.errors import ConfigError

MTP = "mtp"
"""Drafts with the layer of the model's own checkpoint that predicts further tokens."""

AUTO = "auto"
"""Stands alone: drafts from n-grams, and with what there is for the model; see speculative.auto."""

NGRAM = "ngram"
"""Drafts from the sequence's own tokens."""
HISTORY = "history"
"""Drafts from what was written before for the same user."""
LOOK_UPS = (NGRAM, HISTORY)
"""Drafters that look up tokens; every other part of the option `speculative` is a model."""

DEFAULT_TOKENS = 6
MOST_TOKENS = 64
DEFAULT_NODES = 16
MOST_NODES = 256


def scratch_blocks(nodes: int, depth: int, block_size: int) -> int:
    """Blocks of each KV group for the branches of trees of up to `nodes` drafts in one step, `depth` at most one after
    the other: as many branches as one such tree can have beside its main chain."""
    return branches(nodes) * ((depth + block_size - 2) // block_size + 1)


def branches(nodes: int) -> int:
    """The most branches of trees of up to `nodes` drafts in one step."""
    return max(0, nodes - 1)


def draft_methods(option: str | None) -> tuple[str, ...]:
    """The drafters that the option `speculative` names, in the order in which they are asked.

    Raises ConfigError for an empty name, and for more than one model.
    """
    if option is None:
        return ()
    names = tuple(name.strip() for name in option.split(","))
    if not all(names):
        raise ConfigError(
            f"speculative {option!r:.80} has an empty part: name drafters as in ngram,tale-draft"
        )
    if len(names) != len(set(names)):
        raise ConfigError(f"speculative {option!r:.80} names a drafter twice")
    if AUTO in names and len(names) > 1:
        raise ConfigError(f"speculative {option!r:.80}: auto chooses by itself, beside no other drafter")
    if sum(name not in LOOK_UPS for name in names) > 1:
        raise ConfigError(
            f"speculative {option!r:.80} names two models: one can draft, after ngram if you like"
        )
    return names


def draft_model_name(option: str | None) -> str | None:
    """The model that the option `speculative` names, if it names one."""
    return next((name for name in draft_methods(option) if name not in (*LOOK_UPS, AUTO)), None)
