"""Values that are made many times a step: frozen for the type checker, plain and quick at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots that nobody may assign to.

    A dataclass that is frozen at run time takes three times as long to make, and a step makes some hundred. The type
    checker still refuses every assignment.
    """
    return dataclass(slots=True)(cls)
