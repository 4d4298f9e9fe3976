"""Heads that the parser accepts and that a proxy in front may read differently: they are refused."""

from __future__ import annotations

from collections.abc import Iterable

Fault = tuple[int, str, str]
"""Status, sentence and code of the refusal."""


def fault(version: str, headers: Iterable[tuple[bytes, bytes]]) -> Fault | None:
    """What is wrong with a head whose header names are in lower case; None for nothing.

    Lengths that contradict each other are refused by the parser itself.
    """
    if version not in ("1.0", "1.1"):
        return 400, "this is not a request in HTTP/1.1", "bad_request"
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (version == "1.0" or value.strip(b" \t").lower() != b"chunked"):
            # A reader that knows another coding, or none in HTTP/1.0, finds another end of the body (RFC 9112, 6.1).
            return 400, "no transfer coding but chunked is known, and that in HTTP/1.1 alone", "bad_request"
        elif name == b"content-encoding" and value.strip(b" \t").lower() not in (b"", b"identity"):
            return 415, "bodies are read as they are: no content coding is known", "unsupported_media_type"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return 400, "a request has one Host header", "bad_request"  # RFC 9112, 3.2
    return None
