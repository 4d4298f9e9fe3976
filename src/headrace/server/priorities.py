"""Priority classes: names for numbers that all parties can agree on. Lower numbers are more urgent, as in vLLM."""

from __future__ import annotations

PRIORITIES = {"urgent": -100, "normal": 0, "background": 100}


def priority_number(value: object) -> object:
    """The number of a class that is given by its name; anything else unchanged.

    Raises ValueError for an unknown name.
    """
    if not isinstance(value, str):
        return value
    if value not in PRIORITIES:
        raise ValueError(f"must be a whole number or one of {', '.join(PRIORITIES)}")
    return PRIORITIES[value]
