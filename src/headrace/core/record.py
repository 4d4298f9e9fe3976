"""Values that are created many times a step: frozen for the type checker, plain and fast at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots, frozen for the type checker only.

    A dataclass that is frozen at run time takes three times as long to create, and a step creates about a hundred. The
    type checker still rejects every assignment.
    """
    return dataclass(slots=True)(cls)
