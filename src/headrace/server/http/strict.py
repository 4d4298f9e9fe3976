"""Request bodies whose fields are all known: other fields are refused, or ignored where that changes nothing.

A field that would change the answer is refused with 400, a harmless one is ignored, and an unknown one is refused, as
it may be a misspelled option.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from headrace.serving.wire.messages import is_unicode

REQUEST_FIELD = "request_field"
"""Type of the validation errors raised here; their context has the `field` and the whole sentence, `text`."""

MAX_SHOWN_CHARS = 60

EMPTY: tuple[object, ...] = (None, False, 0, "", [], {})


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change the answer, except with a value in `neutral`."""

    why: str
    neutral: tuple[object, ...] = EMPTY


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A field that does not change the answer: ignored, with any value."""

    why: str


Other = Refused | NoEffect


class Strict(BaseModel):
    """A request body, or an object in one. `others` are known fields that are not implemented."""

    model_config = ConfigDict(strict=True, extra="forbid")

    others: ClassVar[Mapping[str, Other]] = {}

    @model_validator(mode="before")
    @classmethod
    def _checked_fields(cls, data: Any) -> Any:
        """The body without ignored fields. Raises for the first field that is refused or unknown, or is not Unicode."""
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            _check_unicode(name, value)
            if name in cls.model_fields:
                kept[name] = value
                continue
            other = cls.others.get(name)
            if isinstance(other, Refused) and value not in other.neutral:
                raise _fault(name, f"is not supported by this server: {other.why}")
            if other is None and value is not None:
                raise _fault(name, f"is not a field of this request{_meant(name, cls)}")
        return kept


def _check_unicode(name: str, value: object) -> None:
    """Raises for half of a surrogate pair anywhere in a field: it cannot be tokenized or encoded as UTF-8."""
    try:
        if is_unicode((name, value)):
            return
    except RecursionError:
        raise _fault(name, "is nested too deep") from None
    raise _fault(name, "holds half of a surrogate pair, which is not text")


def _meant(name: str, kind: type[Strict]) -> str:
    close = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], kind.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _fault(name: str, text: str) -> PydanticCustomError:
    shown = name[:MAX_SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()
    return PydanticCustomError(REQUEST_FIELD, "{text}", {"field": shown, "text": text})
