"""Answers of unknown length to callers of HTTP/1.0, which has no chunks: the end of the connection ends the answer."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def send_unchunked(cycle: RequestResponseCycle) -> None:
    """Have `cycle` send what has no Content-Length as it is (RFC 9112, 6.3). The cycle must not have begun."""
    send = cycle.send
    unknown = False  # length of the answer

    async def send_as_is(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unknown:
                cycle.chunked_encoding = False
        elif unknown:
            cycle.expected_content_length = len(
                message.get("body", b"")
            )  # what uvicorn holds the part against
        await send(message)

    cycle.send = send_as_is  # type: ignore[method-assign]
