"""The listening process: an engine process below, HTTP above, and an end without leftovers."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.server.app import create_app
from headrace.server.body_limit import MAX_BODY_BYTES
from headrace.serving.child import ENGINE_COMMAND
from headrace.serving.process_client import MAX_IN_FLIGHT, ProcessClient
from headrace.serving.supervisor import Supervisor
from headrace.serving.watchdog import DEFAULT_TIMEOUT_S, Watchdog
from headrace.text.tokenizer import Tokenizer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`names`: what requests may call the model; empty for the model's own name. `drain_s`: seconds that running
    requests get to finish at shutdown. `engine_timeout_s`: silence after which an engine is killed and started again,
    see `serving.watchdog`; 0 never does."""

    host: str
    port: int
    names: Sequence[str] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    max_in_flight: int = MAX_IN_FLIGHT
    drain_s: int = 30
    log_level: str = "warning"
    engine_timeout_s: float = DEFAULT_TIMEOUT_S
    engine_command: Sequence[str] = ENGINE_COMMAND


def serve(config: EngineConfig, options: ServeOptions, ready: Callable[[str], None]) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code. `ready` is told the base URL once requests are taken.

    Raises ConfigError for an address that cannot be used, and what the engine raises while it starts.
    """
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s: %(message)s")
    listener = listen(
        options.host, options.port
    )  # before the model is loaded: a taken port should show at once
    with listener:
        return asyncio.run(_serve(config, options, listener, ready))


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, which refuses connections until it listens.

    Raises ConfigError with one sentence where the address is taken or impossible.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error) from error
    return listener


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is taken; choose another with --port")
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}")


async def _serve(
    config: EngineConfig, options: ServeOptions, listener: socket.socket, ready: Callable[[str], None]
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    client = await _start(config, options, stop)
    if client is None:
        return 0
    try:
        folder = client.facts.tokenizer_folder
        tokenizer = None if folder is None else await asyncio.to_thread(Tokenizer.from_folder, folder)
        names = tuple(options.names) or (config.model,)
        app = create_app(client, tokenizer, names, client.facts, max_body_bytes=options.max_body_bytes)
        server = _Server(
            uvicorn.Config(
                app, log_level=options.log_level, access_log=options.log_level in ("info", "debug", "trace"),
                timeout_graceful_shutdown=options.drain_s, lifespan="off", server_header=False,
            ),
            lambda: ready(url(listener)),
        )  # fmt: skip
        # uvicorn sees the signals that come while it serves; one that came before, while this code kept the event loop
        # from seeing it, reaches it here.
        watching = asyncio.ensure_future(_exit_after(stop, server))
        try:
            await server.serve(sockets=[listener])
        except OSError as error:  # somebody else listened there while the model was loading
            raise _unusable(options.host, options.port, error) from error
        finally:
            watching.cancel()
    finally:
        await client.aclose()
    return 0


async def _start(config: EngineConfig, options: ServeOptions, stop: asyncio.Event) -> Supervisor | None:
    """The started engine; None if a signal came first."""

    async def engine() -> ProcessClient:
        return await ProcessClient.start(
            config.to_json(),
            command=options.engine_command,
            max_in_flight=options.max_in_flight,
            watchdog=Watchdog(options.engine_timeout_s) if options.engine_timeout_s else None,
        )

    starting = asyncio.ensure_future(Supervisor.start(engine))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait({starting})
        return None
    finally:
        stopping.cancel()


async def _exit_after(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


class _Server(uvicorn.Server):
    """Tells when it takes requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def url(listener: socket.socket) -> str:
    """An address that a program on this machine can use."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
