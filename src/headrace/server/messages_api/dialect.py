"""Errors in the shape of Anthropic's API: {"type": "error", "error": {"type", "message"}, "request_id"}."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(status: int, body: dict[str, Any], request_id: str | None = None) -> dict[str, Any]:
    """An error body of ours in Anthropic's shape."""
    default = "api_error" if status >= 500 else "invalid_request_error"
    error = {"type": _TYPES.get(status, default), "message": body["error"]["message"]}
    return {"type": "error", "error": error, "request_id": request_id}


class MessagesDialect:
    """ASGI middleware: answers to requests of the Messages API have its errors, whatever refuses them, and name the
    request as `request-id`, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def translate(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                message = {**message, "headers": _named(message["headers"])}
                if message["status"] >= 400:
                    start = message
                    return
            elif start:
                body.extend(message.get("body", b""))
                if message.get("more_body", False):
                    return
                written = _translated(start, bytes(body))
                await send({**start, "headers": _sized(start["headers"], len(written))})
                message = {"type": "http.response.body", "body": written}
            await send(message)

        await self._app(scope, receive, translate)


_Headers = list[tuple[bytes, bytes]]


def _named(headers: _Headers) -> _Headers:
    ids = [(b"request-id", value) for name, value in headers if name.lower() == b"x-request-id"]
    return [*headers, *ids]


def _sized(headers: _Headers, size: int) -> _Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(size).encode())]


def _translated(start: Message, body: bytes) -> bytes:
    """The body in the other shape; as it is where it is none of ours."""
    try:
        given = json.loads(body)
        name = next(
            (value.decode("latin-1") for key, value in start["headers"] if key == b"request-id"), None
        )
        return json.dumps(messages_error(start["status"], given, name), ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError):
        return body
