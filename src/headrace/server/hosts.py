"""Answers to the server's own names only, so that no web page reaches it under a name of its own (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.errors import error_body

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")

PROBES = frozenset({"/health", "/ready"})
"""Load balancers ask these under whatever name they have for the server; they tell nothing."""


def default_hosts(bound: str, keys: bool) -> tuple[str, ...]:
    """Names under which a server that listens on the address `bound` is reached.

    All names, where callers need keys, which a foreign page does not have, or where other machines can connect: they
    use whatever name a proxy, Compose or Kubernetes gives the service, and nothing keeps them out in any case.
    """
    if keys or not is_loopback(bound):
        return (ANY,)
    return tuple(sorted({bound.strip("[]").lower(), *LOOPBACK}))


def is_loopback(host: str) -> bool:
    """Nobody but this machine can connect to it."""
    address = _address(host.strip("[]"))
    return host == "localhost" if address is None else address.is_loopback


def name_of(host: str) -> str:
    """The name in a Host header, without a port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        address, closed, rest = host[1:].partition("]")
        return address if closed and (not rest or rest.startswith(":")) else host
    return host if host.count(":") > 1 else host.partition(":")[0]


def is_name(text: str) -> bool:
    """A host name or an address, without a port."""
    return bool(_NAME.fullmatch(text)) or _address(text.strip("[]")) is not None


class HostCheck:
    """ASGI middleware: 421 for requests under another name than `allowed`; "*" allows all."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name_of(name) for name in allowed)
        self._any = ANY in self._names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._any or scope["path"] in PROBES or self._is_ours(scope):
            await self._app(scope, receive, send)
            return
        body = error_body(
            "this server does not answer to that name; --allowed-hosts lists the names that it does", 421,
            "misdirected_request",
        )  # fmt: skip
        await JSONResponse(body, 421)(scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        return name_of(hosts[0].decode("latin-1")) in self._names


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
