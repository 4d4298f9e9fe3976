"""Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match
from typing_extensions import TypedDict

from headrace.errors import HeadraceError
from headrace.server.http.exchange import current_exchange
from headrace.server.http.headers import NO_STORE
from headrace.server.http.strict import REQUEST_FIELD

GENERIC = "the server failed on this request"

_INSIDE = re.compile(
    r"""(?<![\w:/.])/\w[\w.\-]*/[\w.\-]   # a path
      | \b0x[0-9a-fA-F]{5,}               # an address
      | \b\w+\.(?:py|cpp|so)\b            # a source file
      | Traceback | File\ "               # where it happened
      | \b[A-Z]\w*(?:Error|Exception)\b   # a class
    """,
    re.VERBOSE,
)

_PYDANTICS = re.compile(r"[A-Z][a-z]+ should ")
"""How pydantic begins its sentences: "Input should be a valid string", "List should have at most 5 items"."""

_log = logging.getLogger(__name__)


def safe(message: str) -> str:
    """The message of a 5xx error, or a generic one if it contains internal details, which are logged.

    Messages should have none where they are raised; this is the last check.
    """
    if _INSIDE.search(message) is None:
        return message
    _log.error("withheld from a caller: %s", message)
    return GENERIC


MAX_MESSAGE_CHARS = 2000


_UNPARSED = "There was an error parsing the body"
"""FastAPI's message for what the JSON parser raises beside JSONDecodeError; a test compares them."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """Every error has this shape, except in APIs with their own."""

    error: ErrorDetail


def error_body(message: str, status: int, code: str | None = None, param: str | None = None) -> ErrorAnswer:
    """The body of an error answer."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    # A lone surrogate, quoted from a request, cannot be encoded as UTF-8.
    text = message[:MAX_MESSAGE_CHARS].encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def headrace_error_body(error: HeadraceError) -> ErrorAnswer:
    """The body of the answer to a HeadraceError."""
    text = safe(error.for_callers) if error.status >= 500 else error.for_callers
    return error_body(text, error.status, error.code)


def install(app: FastAPI) -> None:
    """Register handlers for all errors of the app."""
    app.add_exception_handler(HeadraceError, _headrace_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)


async def _headrace_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HeadraceError)
    exchange = current_exchange()
    if exchange is not None:
        exchange.error = error.code
    after = error.retry_after_s
    headers = None if after is None else {"Retry-After": str(after)}
    return JSONResponse(headrace_error_body(error), error.status, headers)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message, param = describe(error.errors())
    return JSONResponse(error_body(message, 400, "invalid_request", param), 400)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    message = str(error.detail)
    if message == _UNPARSED:
        message, code = _why_unparsed(error.__cause__), "invalid_request"
    return JSONResponse(error_body(message, error.status_code, code), error.status_code, headers)


def _why_unparsed(cause: BaseException | None) -> str:
    """A sentence on a body that the JSON parser gave up."""
    if isinstance(cause, RecursionError):
        return "the body is nested too deep"
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not {cause.encoding.upper()} text: {cause.reason} at byte {cause.start}"
    return "the body is not valid JSON: it cannot be parsed, for example because a number has too many digits"


def _methods(request: Request) -> list[str]:
    """All methods of a path. Starlette names those of its first route only."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)


async def _bug(request: Request, error: Exception) -> JSONResponse:
    """Without internal details; the server logs the traceback when it raises the error again."""
    exchange = current_exchange()
    headers = {"Cache-Control": NO_STORE}  # inner middleware has added them to other answers
    if exchange is not None:
        headers["X-Request-Id"] = exchange.request_id
    return JSONResponse(error_body(GENERIC, 500, "internal_error"), 500, headers)


def describe(errors: Sequence[Any]) -> tuple[str, str | None]:
    """(sentence, field) of the first fault of a body."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON: {first.get('ctx', {}).get('error', 'it cannot be parsed')}", None
    path = [str(part) for part in first["loc"][1:] if isinstance(part, int) or not _is_branch(part)]
    if first["type"] == REQUEST_FIELD:
        path.append(first["ctx"]["field"])
        return f"{'.'.join(path)} {first['ctx']['text']}", path[0]
    if not path:
        return "the body must be a JSON object, sent as application/json", None
    if first["type"] == "missing":
        return f"{'.'.join(path)} is missing", path[0]
    text = str(first["msg"]).removeprefix("Value error, ")
    if _PYDANTICS.match(text):
        return f"{'.'.join(path)}: {text[0].lower()}{text[1:]}", path[0]
    return f"{'.'.join(path)} {text}", path[0]


def _is_branch(part: str) -> bool:
    """Names that pydantic gives to the alternatives of a type. They are not names of the body."""
    return "[" in part or "-" in part
