"""Errors in the form of another API than OpenAI's, whichever part of the server refuses the request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.http.errors import ErrorAnswer

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API's own form of errors.

    covers: whether a path belongs to the API. error: takes a status, an error body of ours, {"error": {"message", …}},
    and the request's id, and gives the body in the API's form. id_header: a second name for the header X-Request-Id.
    json_only: bodies are read as JSON whatever their Content-Type says, as curl's -d sends them; requests of foreign
    pages are refused by their Origin, not by this header.
    """

    covers: Callable[[str], bool]
    error: Callable[[int, ErrorAnswer, str | None], object]
    id_header: bytes | None = None
    json_only: bool = False


class ErrorDialects:
    """ASGI middleware for the paths that dialects cover: rewrites error bodies, and the type of what comes in."""

    def __init__(self, app: ASGIApp, dialects: Sequence[Dialect]) -> None:
        self._app = app
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = None
        if scope["type"] == "http":
            dialect = next((each for each in self._dialects if each.covers(scope["path"])), None)
        if dialect is None:
            await self._app(scope, receive, send)
            return
        if dialect.json_only:
            scope = {**scope, "headers": _as_json(scope["headers"])}
        start: Message = {}
        body = bytearray()

        async def translate(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                message = {**message, "headers": _named(message["headers"], dialect.id_header)}
                if message["status"] >= 400:
                    start = message
                    return
            elif start:
                body.extend(message.get("body", b""))
                if message.get("more_body", False):
                    return
                written = _translated(dialect, start, bytes(body))
                await send({**start, "headers": _sized(start["headers"], len(written))})
                message = {"type": "http.response.body", "body": written}
            await send(message)

        await self._app(scope, receive, translate)


def _as_json(headers: Headers) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-type"]
    return [*kept, (b"content-type", b"application/json")]


def _named(headers: Headers, name: bytes | None) -> Headers:
    request_id = _request_id(headers)
    return headers if name is None or request_id is None else [*headers, (name, request_id)]


def _request_id(headers: Headers) -> bytes | None:
    return next((value for name, value in headers if name.lower() == b"x-request-id"), None)


def _sized(headers: Headers, size: int) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(size).encode())]


def _translated(dialect: Dialect, start: Message, body: bytes) -> bytes:
    """The body in the dialect's form; unchanged if it is no error body of ours."""
    request_id = _request_id(start["headers"])
    try:
        given = json.loads(body)
        made = dialect.error(
            start["status"], given, None if request_id is None else request_id.decode("latin-1")
        )
        return json.dumps(made, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError):
        return body
