"""The listening socket, and the system's limit of connections."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket

from headrace.errors import ConfigError

_UNSENT_BYTES = 64 * 2**10
_OTHER_FILES = 512
"""Open files beside connections: the engine's socket, the tokenizer, connections that are being refused."""

_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, which refuses connections until it listens.

    Raises ConfigError if the address is taken or invalid.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host or repr(host)}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise ConfigError(f"cannot listen on {host!r:.80}: it is not a valid host name") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bound_unsent(listener)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise unusable(host, port, error) from error
    return listener


def unusable(host: str, port: int, error: OSError) -> ConfigError:
    """The error for an address that cannot be bound or listened on."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is taken; choose another with --port")
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}")


def url(listener: socket.socket) -> str:
    """An address for programs on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def allow_connections(wanted: int) -> int:
    """The number of possible connections, at most `wanted`; raises this process' limit of open files if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        wanted = max(1, hard - _OTHER_FILES)
        _log.warning("the system allows %d open files: at most %d connections are accepted", hard, wanted)
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return wanted


def _bound_unsent(listener: socket.socket) -> None:
    """Limit the kernel's buffer of unsent bytes to little more than the caller's window; connections inherit it."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", 25)  # <linux/tcp.h>
    with contextlib.suppress(OSError):  # a system without it buffers more
        listener.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)
