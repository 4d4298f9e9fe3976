"""Requires an API key, before anything else of a request is read."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import RateLimited
from headrace.server.access.keys import ANYONE, NOBODY
from headrace.server.access.rate_limit import headers
from headrace.server.access.traffic import Traffic
from headrace.server.http.errors import error_body, headrace_error_body

OPEN_PATHS = frozenset({"/health", "/ready", "/", "/docs", "/calculator"})
OPEN_FOLDERS = ("/page/",)
"""Paths that need no key: liveness, and the pages' own files."""


class KeyCheck:
    """ASGI middleware: 401 without a valid key, 429 above the key's requests a minute.

    It puts the caller into the request's state, see `keys.caller_of`.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if _is_open(scope["path"]):
            scope.setdefault("state", {})["caller"] = NOBODY if len(self._traffic.keys) else ANYONE
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no such routes; without a key that is not revealed
            await send({"type": "websocket.close", "code": 1008})
            return
        traffic = self._traffic
        caller = traffic.caller(_only(scope, b"authorization"), _only(scope, b"x-api-key"))
        if caller is None:
            traffic.usage.unauthorized += 1
            body = error_body(
                "a valid API key is needed, as the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                401,
                "invalid_api_key",
            )
            await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller

        async def with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                limits = headers(traffic.limiter.limits(caller))
                message = {**message, "headers": [*message.get("headers", ()), *limits]}
            await send(message)

        limited = caller.requests_per_minute is not None or caller.tokens_per_minute is not None
        answer = with_limits if limited else send
        if scope["method"] == "POST":
            try:
                traffic.limiter.take_request(caller)
            except RateLimited as error:
                traffic.usage.of(caller.name).refused[error.code] += 1
                after = {"Retry-After": str(error.retry_after_s)}
                await JSONResponse(headrace_error_body(error), error.status, after)(scope, receive, answer)
                return
        await self._app(scope, receive, answer)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def _only(scope: Scope, header: bytes) -> bytes | None:
    """The value of a header that occurs once; None otherwise."""
    found = [value for name, value in scope["headers"] if name == header]
    return found[0] if len(found) == 1 else None
