"""Which host names the server answers to (against DNS rebinding), and which web pages may call it (CORS)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.http.errors import error_body

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")

_Headers = list[tuple[bytes, bytes]]

_METHODS = b"GET, POST, DELETE"
_MAX_AGE_S = b"600"
_EXPOSED = (
    b"retry-after, x-request-id, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, "
    b"x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, "
    b"x-ratelimit-reset-tokens"
)

PROBES = frozenset({"/health", "/ready"})
"""Load balancers use any name for these, and they reveal nothing."""


def default_hosts(bound: str, keys: bool) -> tuple[str, ...]:
    """Host names that a server which listens on the address `bound` accepts.

    All names if callers need keys, which a foreign page does not have, or if other machines can connect: these use any
    name that a proxy, Compose or Kubernetes gives the service, and could connect in any case.
    """
    if keys or not is_loopback(bound):
        return (ANY,)
    return tuple(sorted({bound.strip("[]").lower(), *LOOPBACK}))


def is_loopback(host: str) -> bool:
    """Only this machine can connect to it."""
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
    """ASGI middleware: 421 for requests with a Host header that is not in `allowed`; "*" allows all."""

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


def normal_origin(origin: str) -> str:
    """Scheme and host in lower case. Raises ValueError unless it is an origin such as https://example.org."""
    parts = urlsplit(origin)
    try:
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{origin[:200]!r} is not an origin such as https://example.org:8443")
    return f"{parts.scheme}://{parts.netloc}".lower()


class OriginCheck:
    """ASGI middleware: 403 for pages of other origins, and the CORS headers for those that are allowed.

    Only browsers send an Origin header; requests without one pass. The server's own page has the origin of the Host
    header, which HostCheck has checked before.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        allowed = tuple(allowed)
        self._app = app
        self._any = ANY in allowed
        self._allowed = frozenset(normal_origin(origin) for origin in allowed if origin != ANY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if not origins or (len(origins) == 1 and _same(origins[0], scope)):
            await self._app(scope, receive, send)
            return
        if len(origins) > 1 or not self._allows(origins[0]):
            if scope["type"] != "http":
                await send({"type": "websocket.close", "code": 1008})
                return
            body = error_body(
                "pages of this origin may not call the server; --allowed-origins lists those that may", 403,
                "forbidden_origin",
            )  # fmt: skip
            await JSONResponse(body, 403, {"Vary": "Origin"})(scope, receive, send)
            return
        shared: _Headers = [(b"access-control-allow-origin", origins[0]), (b"vary", b"Origin")]
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            response = Response(status_code=204)
            response.raw_headers.extend(shared + _preflight(scope))
            await response(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", _EXPOSED)
                message = {**message, "headers": [*message.get("headers", ()), *shared, exposed]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _allows(self, origin: bytes) -> bool:
        return self._any or origin.decode("latin-1").lower() in self._allowed


def _same(origin: bytes, scope: Scope) -> bool:
    """The origin is this server, by its Host header. The scheme may differ: TLS may end at a proxy."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    scheme, _, netloc = origin.lower().partition(b"://")
    return bool(host) and scheme in (b"http", b"https") and netloc == host.lower()


def _preflight(scope: Scope) -> _Headers:
    asked = next(
        (value for name, value in scope["headers"] if name == b"access-control-request-headers"), None
    )
    answer = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MAX_AGE_S)]
    return answer if asked is None else [*answer, (b"access-control-allow-headers", asked)]
