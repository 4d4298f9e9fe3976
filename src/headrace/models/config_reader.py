"""Reads fields of a foreign config.json with bounds, so that no other code sees an absurd value."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel

MAX_NAMES = 20_000
"""Texts in a list of names."""

_REQUIRED = object()


class ConfigReader:
    """One JSON object of a config. A field that is null counts as absent.

    Every method raises CheckpointError where a required field is absent or a value is out of its range.
    """

    def __init__(self, fields: Mapping[str, Any], where: str = "config.json") -> None:
        self.fields = fields
        self.where = where

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]; required if there is no default."""
        value = self._value(name, _REQUIRED if default is None else default)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)  # some exporters write 8192.0
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._bad(name, f"a whole number between {low} and {high}", value)
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]; required if there is no default."""
        value = self._value(name, _REQUIRED if default is None else default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self._bad(name, f"a number between {low:g} and {high:g}", value)
        return float(value)

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        return self.number(name, low, high) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._bad(name, "true or false", value)
        return value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._bad(name, "text", value)
        return value

    def table(self, name: str) -> ConfigReader | None:
        """A nested object, or None where it is absent."""
        value = self._value(name, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._bad(name, "an object", value)
        return ConfigReader(value, f"{name} of {self.where}")

    def texts(self, name: str, length: int) -> list[str] | None:
        """A list of exactly `length` texts, or None where it is absent."""
        value = self._value(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(isinstance(x, str) for x in value):
            raise self._bad(name, f"a list of {length} texts", value)
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of at most MAX_NAMES texts, or a single one; empty where it is absent."""
        value = self._value(name, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(x, str) for x in texts):
            raise self._bad(name, "a list of texts", value)
        if len(texts) > MAX_NAMES:
            raise self._bad(name, f"a list of at most {MAX_NAMES} texts", f"{len(texts)} of them")
        return tuple(texts)

    def integers(
        self, name: str, length: int, low: int, high: int, *, fewer: bool = False
    ) -> list[int] | None:
        """A list of exactly `length` whole numbers in [low, high], or of `fewer`, or None where it is absent."""
        value = self._value(name, None)
        if value is None:
            return None
        items: list[Any] = value if isinstance(value, list) else [None]
        legal = (isinstance(x, int) and not isinstance(x, bool) and low <= x <= high for x in items)
        if not (len(items) == length or (fewer and len(items) < length)) or not all(legal):
            count = f"up to {length}" if fewer else f"{length}"
            raise self._bad(name, f"a list of {count} whole numbers between {low} and {high}", value)
        return items

    def numbers(self, name: str, length: int, low: float, high: float) -> tuple[float, ...]:
        """A required list of exactly `length` finite numbers in [low, high]."""
        value = self._value(name, _REQUIRED)
        items = value if isinstance(value, list) else [None]
        legal = (isinstance(x, (int, float)) and not isinstance(x, bool) and low <= x <= high for x in items)
        if len(items) != length or not all(legal):
            raise self._bad(name, f"a list of {length} numbers between {low:g} and {high:g}", value)
        return tuple(map(float, value))

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One id or a list of at most 64 ids below `vocab_size`; empty where it is absent."""
        value = self._value(name, [])
        ids = value if isinstance(value, list) else [value]
        legal = (isinstance(x, int) and not isinstance(x, bool) and 0 <= x < vocab_size for x in ids)
        if len(ids) > 64 or not all(legal):
            raise self._bad(name, f"token ids below vocab_size {vocab_size}", value)
        return tuple(ids)

    def only(self, name: str, supported: Collection[object], default: object) -> None:
        """Refuse with UnsupportedModel unless the field is absent or holds a value that is implemented."""
        value = self._value(name, default)
        if value not in supported:
            allowed = ", ".join(repr(item) for item in supported)
            raise UnsupportedModel(f"{name} {value!r:.80} in {self.where} is not supported, only {allowed}")

    def _value(self, name: str, default: object) -> Any:
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise CheckpointError(f"{self.where} lacks the field {name}")
        return default

    def _bad(self, name: str, expected: str, value: object) -> CheckpointError:
        return CheckpointError(f"{name} in {self.where} must be {expected}, got {_short(value)}")


def _short(value: object) -> str:
    """A value as text of bounded length; repr of a huge int would raise."""
    if isinstance(value, int) and abs(value) > 10**30:
        return f"a number of about {int(math.log10(abs(value)))} digits"
    return f"{value!r:.80}"
