"""Answers of Ollama's API: a line of JSON for each part, the last one with counts and durations; and errors.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from headrace.server.http.dialect import Dialect
from headrace.server.http.errors import ErrorAnswer
from headrace.server.http.events import EventWriter, failure_body
from headrace.server.http.json_parts import JsonList, encoded
from headrace.server.requests.job import Job
from headrace.server.requests.logprobs import ChatToken, chat_logprobs
from headrace.server.requests.reply import Reply
from headrace.serving.requests.completion import Delta
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.json_text import complete_members
from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Piece, Reasoning

_NANOSECONDS = 10**9


class OllamaErrorAnswer(TypedDict):
    error: str


class OllamaFunction(TypedDict):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(TypedDict):
    id: str
    function: OllamaFunction


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaEnd(TypedDict):
    """A line's fields beside its text. Counts, and durations in nanoseconds, if something was generated."""

    model: str
    created_at: str
    logprobs: NotRequired[JsonList[ChatToken]]
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class OllamaChatAnswer(OllamaEnd):
    message: OllamaMessage


class OllamaGenerateAnswer(OllamaEnd):
    response: str
    thinking: NotRequired[str]


def ollama_error(status: int, body: ErrorAnswer, request_id: str | None = None) -> OllamaErrorAnswer:
    """An error body of ours in Ollama's form."""
    return {"error": body["error"]["message"]}


DIALECT = Dialect(lambda path: path.startswith("/api/"), ollama_error, json_only=True)


def now() -> str:
    """The time as Ollama writes it (RFC 3339, UTC)."""
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * _NANOSECONDS)


class Pieces:
    """Pieces of a reply as the fields `content`, `thinking` and `tool_calls`; a call is written when it is complete."""

    def __init__(self, reply: Reply, shows_thinking: bool) -> None:
        self._reply = reply
        self._shows_thinking = shows_thinking
        self._name: str | None = None
        self._arguments = io.StringIO()
        self._calls = 0

    def take(self, delta: Delta) -> dict[str, Any]:
        """The fields that an addition gives; the last addition brings what was held back."""
        fields: dict[str, Any] = {}
        for piece in self._reply.take(delta):
            self._add(piece, fields)
        if delta.finish_reason is not None:
            self._close(fields)
        return fields

    def _add(self, piece: Piece, fields: dict[str, Any]) -> None:
        match piece:
            case Content(text):
                fields["content"] = fields.get("content", "") + text
            case Reasoning(text) if self._shows_thinking:
                fields["thinking"] = fields.get("thinking", "") + text
            case CallBegins(_, name):
                self._close(fields)
                self._name = name
            case CallArguments(_, text):
                self._arguments.write(text)

    def _close(self, fields: dict[str, Any]) -> None:
        if self._name is None:
            return
        arguments = complete_members(self._arguments.getvalue())
        call: OllamaFunction = {"index": self._calls, "name": self._name, "arguments": arguments}
        fields.setdefault("tool_calls", []).append({"id": self._reply.new_call_id(), "function": call})
        self._name, self._arguments = None, io.StringIO()
        self._calls += 1


class Answer(EventWriter[tuple[int, Delta]]):
    """The lines of a streamed answer, or one answer that is sent whole.

    chats: /api/chat, whose text is in a `message`; else /api/generate, whose text is `response`.
    begun: time.perf_counter() when the request came. logprobs: they are shown.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self,
        job: Job,
        model: str,
        pieces: Pieces,
        tokenizer: Tokenizer | None,
        *,
        chats: bool,
        begun: float,
        logprobs: bool,
    ) -> None:
        self._job = job
        self._model = model
        self._pieces = pieces
        self._tokenizer = tokenizer
        self._chats = chats
        self._begun = begun
        self._shows_logprobs = logprobs
        self._reason: str | None = None
        self._texts: dict[str, io.StringIO] = {}
        self._calls: list[OllamaCall] = []
        self._logprobs = JsonList[ChatToken]()

    def write(self, item: tuple[int, Delta]) -> bytes:
        delta = item[1]
        fields = self._pieces.take(delta)
        self._reason = delta.finish_reason or self._reason
        shown = self._shown(delta)
        if not fields and not shown:
            return b""
        return _line(self._part(fields) | ({"logprobs": shown} if shown else {}) | {"done": False})

    def end(self) -> Iterable[bytes]:
        return (_line(self._part({}) | self._last()),)

    def fail(self, error: Exception) -> bytes:
        return _line(ollama_error(0, failure_body(error)))

    def add(self, index: int, delta: Delta) -> None:
        """An addition to an answer that is sent whole."""
        fields = self._pieces.take(delta)
        self._reason = delta.finish_reason or self._reason
        for name in ("content", "thinking"):
            if name in fields:
                self._texts.setdefault(name, io.StringIO()).write(fields[name])
        self._calls += fields.get("tool_calls", ())
        self._logprobs.extend(self._shown(delta))

    def whole(self) -> OllamaChatAnswer | OllamaGenerateAnswer:
        """The answer, for `json_parts`."""
        last = self._last()
        if self._shows_logprobs:
            last["logprobs"] = self._logprobs
        texts = {name: text.getvalue() for name, text in self._texts.items()}
        text = texts.get("content", "")
        if not self._chats:
            generated = _generated(last, text)
            if "thinking" in texts:
                generated["thinking"] = texts["thinking"]
            return generated
        message: OllamaMessage = {"role": "assistant", "content": text}
        if "thinking" in texts:
            message["thinking"] = texts["thinking"]
        if self._calls:
            message["tool_calls"] = self._calls
        return {**last, "message": message}

    def _shown(self, delta: Delta) -> list[ChatToken]:
        return chat_logprobs(delta.logprobs, self._tokenizer) if self._shows_logprobs else []

    def _part(self, fields: dict[str, Any]) -> dict[str, Any]:
        head: dict[str, Any] = {"model": self._model, "created_at": now()}
        if self._chats:
            return head | {"message": {"role": "assistant", "content": ""} | fields}
        return head | {"response": fields.pop("content", "")} | fields

    def _last(self) -> OllamaEnd:
        (metrics,) = self._job.metrics
        return {
            "model": self._model,
            "created_at": now(),
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": nanoseconds(time.perf_counter() - self._begun),
            "load_duration": 0,  # the model was in memory
            "prompt_eval_count": metrics.num_prompt_tokens,
            "prompt_eval_duration": nanoseconds(metrics.prefill_s),
            "eval_count": metrics.num_output_tokens,
            "eval_duration": nanoseconds(metrics.decode_s),
        }


def nothing(model: str, chats: bool, unloads: bool) -> OllamaChatAnswer | OllamaGenerateAnswer:
    """The answer to a request without a prompt, which asks for the model to be loaded or unloaded."""
    end: OllamaEnd = {
        "model": model,
        "created_at": now(),
        "done": True,
        "done_reason": "unload" if unloads else "load",
    }
    if chats:
        return {**end, "message": {"role": "assistant", "content": ""}}
    return _generated(end, "")


def _generated(end: OllamaEnd, text: str) -> OllamaGenerateAnswer:
    return {**end, "response": text}  # type: ignore[typeddict-item]  # `end` has no other keys


def _line(value: object) -> bytes:
    return encoded(value) + b"\n"
