"""A request to an app in this process: routes, limits and errors as over HTTP, without a connection."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Scope


async def call(
    app: ASGIApp, path: str, body: bytes = b"", method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    """Send a JSON body; gives status, headers (names in lower case) and the answer's body.

    The caller stays until the answer is there: cancelling this ends the work as a disconnect would.
    """
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [
            (b"host", b"localhost"), (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 0), "server": ("127.0.0.1", 0), "state": {},
    }  # fmt: skip
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])
    status, headers, parts = 500, dict[str, str](), list[bytes]()

    async def receive() -> Message:
        message = next(asked, None)
        if message is None:
            await asyncio.Event().wait()  # nobody disconnects
            raise AssertionError
        return message

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update((name.decode().lower(), value.decode()) for name, value in message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, headers, b"".join(parts)
