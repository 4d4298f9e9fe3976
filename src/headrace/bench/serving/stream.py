"""A streamed answer of an OpenAI-compatible server: times and counts of its tokens, checked for consistency.

Events are only timed when they are received. They are decoded together after the last one, so that the client's own
work adds no time between two tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DONE = b"[DONE]"
_MAX_SHOWN = 200


class StreamError(Exception):
    """The answer is not a complete stream of completions. The message is one sentence."""


class EventBody:
    """Collects server-sent events and their times."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.times: list[float] = []
        self._pending = b""

    def feed(self, now: float, data: bytes) -> None:
        if self._pending:
            data = self._pending + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        parts = data.split(b"\n\n")
        self._pending = parts.pop()
        if parts:
            self.events += parts
            self.times += [now] * len(parts)

    @property
    def data(self) -> bytes:
        """The whole body, for answers that are not streams."""
        return b"\n\n".join([*self.events, self._pending])


@dataclass(frozen=True, slots=True)
class Streamed:
    """`times`: when pieces of text were received, ascending. `prompt_tokens` and `output_tokens` are the server's
    counts; without `usage` they are None and the number of pieces."""

    text: str
    times: tuple[float, ...]
    prompt_tokens: int | None
    output_tokens: int
    counted: bool  # by the server


def read_stream(body: EventBody, max_tokens: int) -> Streamed:
    """Decode the events. Raises StreamError if they end early, are malformed, or contradict each other."""
    chunks, times = _chunks(body)
    texts: list[str] = []
    text_times: list[float] = []
    first: float | None = None
    usage: dict[str, Any] | None = None
    finished = False
    for chunk, now in zip(chunks, times, strict=True):
        if not isinstance(chunk, dict):
            raise StreamError(f"an event holds no object: {chunk!r:.{_MAX_SHOWN}}")
        if chunk.get("error"):
            raise StreamError(f"the stream ended with an error: {_message(chunk)}")
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise StreamError(f"an event has no choices: {chunk!r:.{_MAX_SHOWN}}")
        for choice in choices:
            if not isinstance(choice, dict):
                raise StreamError(f"a choice is not an object: {choice!r:.{_MAX_SHOWN}}")
            if first is None:
                first = now
            finished |= choice.get("finish_reason") is not None
            if piece := _text(choice):
                texts.append(piece)
                text_times.append(now)
        if isinstance(chunk.get("usage"), dict):
            usage = chunk["usage"]
    if not finished:
        raise StreamError("the stream ended without a finish_reason")
    assert first is not None
    if not text_times:
        text_times = [first]
    pieces = len(texts)
    if usage is None:
        return Streamed("".join(texts), tuple(text_times), None, pieces, False)
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if output > max_tokens:
        raise StreamError(f"the server counts {output} tokens, but at most {max_tokens} were requested")
    if output < pieces:
        raise StreamError(f"the server counts {output} tokens, but sent {pieces} pieces of text")
    return Streamed("".join(texts), tuple(text_times), prompt, output, True)


def error_message(status: int, data: bytes) -> str:
    """The message of an answer that is not a stream, as one line."""
    try:
        message = _message(json.loads(data))
    except ValueError:
        message = data[:_MAX_SHOWN].decode("utf-8", "replace").strip()
    return f"HTTP {status}: {' '.join(message.split()) or 'empty body'}"


def _chunks(body: EventBody) -> tuple[list[Any], list[float]]:
    payloads: list[bytes] = []
    times: list[float] = []
    done = False
    for event, now in zip(body.events, body.times, strict=True):
        payload = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data(event)
        if payload == DONE:
            done = True
        elif payload:  # an empty one is a comment that keeps the connection open
            if done:
                raise StreamError("the stream continues after [DONE]")
            payloads.append(payload)
            times.append(now)
    try:
        # One call decodes all of them as a JSON list.
        chunks: list[Any] = json.loads(b"[" + b",".join(payloads) + b"]")
    except ValueError:
        chunks = []
    if len(chunks) != len(payloads):
        raise StreamError(f"an event is not JSON: {_first_bad(payloads)!r:.{_MAX_SHOWN}}")
    if not payloads:
        raise StreamError("the stream is empty")
    if not done:
        error = next((chunk for chunk in chunks if isinstance(chunk, dict) and chunk.get("error")), None)
        raise StreamError(
            "the stream ended early: without [DONE]"
            if error is None
            else f"the stream ended with an error: {_message(error)}"
        )
    return chunks, times


def _data(event: bytes) -> bytes:
    """The data of an event that has several lines."""
    lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def _first_bad(payloads: list[bytes]) -> str:
    for payload in payloads:
        try:
            json.loads(payload)
        except ValueError:
            return payload.decode("utf-8", "replace")
    return ""


def _text(choice: dict[str, Any]) -> str:
    """The new text of a choice, of completions and of chats; reasoning counts as text."""
    if "text" in choice:
        found = choice["text"]
    else:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise StreamError(f"a choice has neither text nor delta: {choice!r:.{_MAX_SHOWN}}")
        found = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    if found is not None and not isinstance(found, str):
        raise StreamError(f"the text of a choice is not text: {found!r:.{_MAX_SHOWN}}")
    return found or ""


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise StreamError(f"the usage gives no {name}: {usage!r:.{_MAX_SHOWN}}")
    return value


def _message(data: object) -> str:
    """The message in OpenAI's error shape, or the data itself."""
    error = data.get("error", data) if isinstance(data, dict) else data
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_MAX_SHOWN]
