"""The messages between the server process and the engine process: frozen, typed, never pickled.

A message is a msgpack array that begins with its kind. It carries the core's own values: decoding checks the type of
every field, and the constructors of requests check their ranges once more. A failure means that the other side is
broken, so it is an error of the connection. The length of a message is bounded by its frame, see `connection`.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, get_origin

import msgspec
from msgspec import Struct

from headrace import errors
from headrace.core.engine import EngineStats
from headrace.core.types import NewRequest, Output
from headrace.errors import EngineDead, HeadraceError, InvalidParams
from headrace.serving.engine.state import ModelFacts, View

MAX_ERROR_CHARS = 16_384
"""Longest error sentence."""


class WireError(Exception):
    """Received data is not a message of this protocol, or a message cannot be encoded."""


class Message(Struct, frozen=True, array_like=True, tag=True):
    """What a frame holds."""


# ---- To the engine process ----


class Hello(Message, frozen=True):
    """The first message: EngineConfig as JSON, and the version of the sender, which must be the receiver's."""

    version: str
    config: str


class Add(Message, frozen=True):
    """A NewRequest, made by `add` and read by `request_of`. Answered by Accepted or Refused, before any Outputs.

    The request is decoded by itself, so that one that is not a request is refused, and the others go on. `key` is
    `NewRequest.key`, which all messages about the request carry.
    """

    key: str
    request: msgspec.Raw


class Abort(Message, frozen=True):
    """End a request, or one completion of it, because its caller has left or found a stop string."""

    key: str
    index: int | None
    stopped: bool


class StatsRequest(Message, frozen=True):
    """Answered by Stats with the same number."""

    number: int


class Ping(Message, frozen=True):
    """Answered by Pong, between two steps: a sign of life."""


class SnapshotRequest(Message, frozen=True):
    """Answered by Snapshot with the same number."""

    number: int


class Shutdown(Message, frozen=True):
    """End at once and drop running requests."""


# ---- From the engine process ----


class Ready(Message, frozen=True):
    """The model is loaded."""

    facts: ModelFacts


class Accepted(Message, frozen=True):
    key: str


class Refused(Message, frozen=True):
    """One request has failed; `kind` is the error's class in `headrace.errors`."""

    key: str
    kind: str
    text: str


class Dropped(Message, frozen=True):
    """A request was aborted before the engine had it: nothing was computed, and no Outputs will follow."""

    key: str


class Outputs(Message, frozen=True):
    """The outputs of one step, or some of them if there are many."""

    outputs: tuple[Output, ...]


class Stats(Message, frozen=True):
    number: int
    stats: EngineStats


class Pong(Message, frozen=True):
    """The answer to Ping."""


class StepBegun(Message, frozen=True):
    """A step of so many tokens begins, which explains a silence. At the speed of earlier steps it takes at most
    `expected_s`; None if no earlier step compares."""

    tokens: int
    expected_s: float | None


class Snapshot(Message, frozen=True):
    number: int
    view: View


class Failed(Message, frozen=True):
    """The engine could not start, or has ended; the process exits after this."""

    kind: str
    text: str


ToEngine = Hello | Add | Abort | StatsRequest | SnapshotRequest | Ping | Shutdown
FromEngine = Ready | Accepted | Refused | Dropped | Outputs | Stats | Snapshot | Pong | StepBegun | Failed

# ---- Encoding ----


def _decoded(kind: Any, value: Any) -> Any:
    """Types that msgspec does not know: the counters in CacheStats."""
    if get_origin(kind) is Counter:
        return Counter(msgspec.convert(value, dict[str, int]))
    raise NotImplementedError


_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_request: msgspec.msgpack.Decoder[NewRequest] = msgspec.msgpack.Decoder(NewRequest)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine, dec_hook=_decoded)


def encode(message: Message) -> bytes:
    """Raises WireError for values that the format cannot hold, such as integers beyond 64 bits."""
    return _encoded(type(message).__name__, message)


def add(new: NewRequest) -> Add:
    """Raises WireError as `encode`."""
    return Add(new.key, msgspec.Raw(_encoded("Add", new)))


def request_of(message: Add) -> NewRequest:
    """Raises InvalidParams for anything but a request."""
    try:
        return _request.decode(message.request)
    except (msgspec.MsgspecError, HeadraceError, ValueError, RecursionError) as error:
        raise InvalidParams(f"not a request to the engine: {error}") from error


def _encoded(name: str, value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise WireError(f"a {name} message cannot be encoded: {error}") from error


def is_unicode(value: object) -> bool:
    """False if JSON data holds half of a surrogate pair, which no message could carry. Raises RecursionError.

    One native pass, about 50 times as fast as the json module's.
    """
    try:
        try:
            _encoder.encode(value)
        except OverflowError:  # a number of more than 64 bits
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def decode_to_engine(payload: bytes) -> ToEngine:
    """Raises WireError for anything but a message to the engine."""
    try:
        return _to_engine.decode(payload)
    except (msgspec.MsgspecError, HeadraceError, ValueError, RecursionError) as error:
        raise WireError(f"not a message to the engine: {error}") from error


def decode_from_engine(payload: bytes) -> FromEngine:
    """Raises WireError for anything but a message from the engine."""
    try:
        return _from_engine.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message from the engine: {error}") from error


# ---- Errors ----


def failed(error: Exception) -> Failed:
    return Failed(_kind(error), _sentence(error))


def refused(key: str, error: HeadraceError) -> Refused:
    return Refused(key, _kind(error), _bounded(error.for_callers))


def error_of(message: Failed | Refused) -> HeadraceError:
    """The error with its own class; EngineDead if this version has no such class."""
    kind = getattr(errors, message.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = EngineDead
    return kind(message.text)


def _kind(error: Exception) -> str:
    """The nearest class in `headrace.errors`."""
    names = (kind.__name__ for kind in type(error).__mro__ if issubclass(kind, HeadraceError))
    return next((name for name in names if hasattr(errors, name)), EngineDead.__name__)


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if not isinstance(error, HeadraceError):
        text = f"{type(error).__name__}: {text}"
    return _bounded(text)


def _bounded(text: str) -> str:
    return text[:MAX_ERROR_CHARS].encode("utf-8", "replace").decode()
