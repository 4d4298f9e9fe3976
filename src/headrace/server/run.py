"""The listening process: an engine process below, HTTP above, and an end without leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from headrace.async_llm import AsyncLLM, ProcessOptions
from headrace.config import EngineConfig
from headrace.core.types import Pooling
from headrace.extras import install_command
from headrace.server.access.traffic import TrafficOptions, reload_on_hangup
from headrace.server.anthropic.answers import DIALECT as ANTHROPIC
from headrace.server.app import create_app
from headrace.server.http.body import MAX_BODY_BYTES
from headrace.server.http.connection import ConnectionLimits, WriteBatch
from headrace.server.http.dialect import ErrorDialects
from headrace.server.http.headers import EVERYWHERE
from headrace.server.http.listener import allow_connections, unusable, url
from headrace.server.http.pace import Drain
from headrace.server.http.protocol import GuardedProtocol
from headrace.server.observability.observer import Sink
from headrace.server.observability.tracing import tracing
from headrace.server.ollama.answers import DIALECT as OLLAMA
from headrace.server.openai.responses.store import DEFAULT_BYTES
from headrace.server.shutdown import Ending, LastResort
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.engine.watchdog import DEFAULT_TIMEOUT_S
from headrace.serving.logs import TEXT, LogWriter, logs
from headrace.text.grammar_store import missing_package
from headrace.text.tools.formats import AUTO, ReplyFormats

_LAST_WORDS_S = 0.5
"""Time to send error events to streams that did not finish in time."""

_ORDERLY_S = 2.0
"""Time for the shutdown after the deadline of the requests."""

_BACKLOG = 2048
"""Connections that may wait to be accepted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`names`: what requests may call the model; empty for the model's own name. `drain_s`: seconds that running
    requests get to finish at shutdown. `engine_timeout_s`: silence after which an engine is killed and started again,
    see `serving.engine.watchdog`; 0 never does."""

    host: str
    port: int
    names: Sequence[str] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    pooling: Pooling = Pooling.LAST
    response_store_bytes: int = DEFAULT_BYTES
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    traffic: TrafficOptions = field(default_factory=TrafficOptions)
    drain_s: int = 30
    engine_timeout_s: float = DEFAULT_TIMEOUT_S
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    log_level: str = "warning"
    log_format: str = TEXT
    otlp_traces_endpoint: str | None = None
    engine_command: Sequence[str] = ENGINE_COMMAND


def serve(
    config: EngineConfig, options: ServeOptions, listener: socket.socket, ready: Callable[[str], None]
) -> int:
    """Serve on a socket of `listen` until SIGINT or SIGTERM. Returns the exit code: 0, or 128 plus the signal's number
    after a second signal, which ends the drain. `ready` is called with the base URL when requests are accepted.

    Raises ConfigError where another process has come to listen on the address, and what the engine raises while it
    starts.
    """
    last = LastResort()
    with logs(options.log_level, options.log_format) as log, contextlib.closing(last):
        options.traffic.warn(options.host)
        missing = missing_package()
        if missing is not None:
            command = install_command("grammar")
            _log.warning("%s: %s. Until then such requests are answered with 501", missing, command)
        with (
            tracing(
                options.otlp_traces_endpoint, options.names[0] if options.names else config.model
            ) as sinks,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_serve(config, options, listener, ready, log, sinks, last))


async def _serve(
    config: EngineConfig,
    options: ServeOptions,
    listener: socket.socket,
    ready: Callable[[str], None],
    log: LogWriter,
    sinks: Sequence[Sink],
    last: LastResort,
) -> int:
    ending = Ending()
    ending.listen()
    engine = AsyncLLM.from_config(
        config, ProcessOptions(options.traffic.max_queue, options.engine_timeout_s, options.engine_command)
    )
    starting = asyncio.ensure_future(engine.start())
    try:
        await _first_of(ending.asked.wait(), starting)
        if not starting.done():
            return 0
        starting.result()
        names = tuple(options.names) or (config.model,)
        traffic = options.traffic.traffic(engine.facts)
        if options.traffic.rules.keys.file is not None:
            reload_on_hangup(traffic)
        app = create_app(
            engine, names, max_body_bytes=options.max_body_bytes, traffic=traffic,
            replies=ReplyFormats.of(engine.inputs.tokenizer, options.tool_call_parser, options.reasoning_parser),
            pooling=options.pooling, sinks=sinks, response_store_bytes=options.response_store_bytes,
            allowed_hosts=options.traffic.hosts(options.host), allowed_origins=options.traffic.allowed_origins,
        )  # fmt: skip
        app.state.monitor.start(log)
        drain = Drain(app)
        allowed = allow_connections(options.connections.max_connections)
        limits = replace(options.connections, max_connections=allowed)
        server = Server(uvicorn_config(drain, limits, options.log_level), lambda: ready(url(listener)))
        try:
            listener.listen(_BACKLOG)
        except OSError as error:  # another process listened there while the model was loading
            raise unusable(options.host, options.port, error) from error
        gc.collect()
        gc.freeze()  # objects that live as long as the server are not collected, which would delay all streams
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        await _first_of(ending.asked.wait(), serving)
        if not serving.done():
            last.within(options.drain_s + _ORDERLY_S, 0)
            await _finish(server, engine, drain, ending, options.drain_s)
            if ending.urged.is_set():
                last.within(_ORDERLY_S / 2, ending.exit_code)
            app.state.feed.close()
        await serving
        app.state.service.long_texts.shutdown(cancel_futures=True)
        app.state.service.chats.close()
    finally:
        starting.cancel()
        await engine.close()
    return ending.exit_code


async def _finish(server: Server, engine: AsyncLLM, drain: Drain, ending: Ending, drain_s: float) -> None:
    """Let accepted requests finish, then end the server; requests that do not finish in time end with an error."""
    engine.drain()
    drain.begin()
    server.refuse_unfinished()
    finished = asyncio.ensure_future(drain.finished())
    await _first_of(ending.urged.wait(), finished, timeout_s=drain_s)
    if not finished.done():
        await engine.close(0.0)
        await asyncio.wait({finished}, timeout=_LAST_WORDS_S)
        finished.cancel()
    server.should_exit = True
    server.force_exit = ending.urged.is_set()


async def _first_of(
    other: Coroutine[Any, Any, Any], task: asyncio.Future[Any], timeout_s: float | None = None
) -> None:
    """Wait for the first of the two, and cancel `other`."""
    waiting = asyncio.ensure_future(other)
    try:
        await asyncio.wait({waiting, task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def uvicorn_config(app: ASGIApp, limits: ConnectionLimits, log_level: str) -> uvicorn.Config:
    """uvicorn over httptools, within limits.

    httptools and uvloop are required: the limits extend httptools' protocol, and with both a streamed event takes half
    as long as with h11 on asyncio's loop (4.6 against 9.4 microseconds).
    """
    return uvicorn.Config(
        ErrorDialects(app, (ANTHROPIC, OLLAMA)),  # the outermost: it translates errors of whatever is inside
        http=cast(
            type[asyncio.Protocol], functools.partial(GuardedProtocol, limits=limits, batch=WriteBatch())
        ),
        ws="none",
        lifespan="off",
        server_header=False,
        headers=list(EVERYWHERE),
        log_config=None,  # configured by `logs`
        log_level=log_level,
        access_log=False,  # see `observer.log_request`
        timeout_keep_alive=int(limits.keep_alive_timeout_s),
        timeout_graceful_shutdown=1,  # after the drain
    )


class Server(uvicorn.Server):
    """Calls `ready` when it accepts requests, and does not handle signals."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()

    def refuse_unfinished(self) -> None:
        """Refuse requests that have arrived only in part."""
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, GuardedProtocol):
                connection.refuse_unfinished()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
