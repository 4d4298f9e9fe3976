"""Two servers: an app with a counting engine in this process, and `headrace serve` with the bundled model."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvloop

from headrace.config import EngineConfig
from headrace.core.engine import EngineStats
from headrace.server.access.traffic import Traffic, TrafficOptions
from headrace.server.app import create_app
from headrace.server.http.connection import ConnectionLimits
from headrace.server.http.listener import listen, url
from headrace.server.run import Server, uvicorn_config
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.client.process import ProcessClient
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import ReplyFormats
from tests.places import TALE
from tests.running import over
from tests.serving.tiny_engine import COMMAND

STEP_S = 0.002
MAX_BODY_BYTES = 100_000
MAX_IN_FLIGHT = 64


class TinyServer:
    """An app over the counting engine, or another one like it, listening in a thread of its own."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        traffic: TrafficOptions | None = None,
        command: Sequence[str] = COMMAND,
        folder: Path = TALE,
        engine: EngineConfig | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        names: Sequence[str] = ("tiny", "alias"),
        parsers: Mapping[str, str] | None = None,
        **config: object,
    ) -> None:
        self._command, self._max_body_bytes = command, max_body_bytes
        self._max_in_flight = max_in_flight
        self._folder, self._names, self._parsers = folder, names, parsers
        self._traffic = traffic
        self._limits = limits or ConnectionLimits()
        self._config = {"step_s": STEP_S, "tokenizer_folder": str(folder)} | config
        if engine is not None:  # a real one, by a command that knows what to do with it
            self._config = engine.to_json()
        started: queue.Queue[str | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run(started)), daemon=True)
        self._thread.start()
        outcome = started.get(timeout=60)
        if isinstance(outcome, BaseException):
            raise outcome
        self.url = outcome
        self.http = httpx.Client(base_url=self.url, timeout=30)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    async def _run(self, started: queue.Queue[str | BaseException]) -> None:
        try:
            self.loop = asyncio.get_running_loop()
            self.client = await ProcessClient.start(
                self._config, command=self._command, max_in_flight=self._max_in_flight
            )
        except BaseException as error:
            started.put(error)
            raise
        tokenizer = Tokenizer.from_folder(self._folder)
        facts, traffic = self.client.facts, self._traffic
        self.app = app = create_app(
            over(self.client, tokenizer), self._names, max_body_bytes=self._max_body_bytes,
            traffic=traffic and traffic.traffic(facts), allowed_hosts=traffic.hosts("127.0.0.1") if traffic else ("*",),
            allowed_origins=traffic.allowed_origins if traffic else (),
            replies=None if self._parsers is None else ReplyFormats.of(tokenizer, **self._parsers),
        )  # fmt: skip
        self.traffic: Traffic = app.state.service.traffic
        self.feed = app.state.feed
        app.state.monitor.start()
        listener = listen("127.0.0.1", 0)
        self._server = Server(uvicorn_config(app, self._limits, "critical"))
        listener.listen(100)
        started.put(url(listener))
        await self._server.serve(sockets=[listener])
        await self.client.aclose()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine that runs on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def stats(self) -> EngineStats:
        stats: EngineStats = self.call(self.client.stats())
        return stats

    @property
    def connections(self) -> list[object]:
        """Those that are open now."""
        return list(self._server.server_state.connections)

    @property
    def idle(self) -> bool:
        stats = self.stats()
        return stats.running == stats.waiting == 0 and stats.free_blocks == stats.total_blocks

    def close(self) -> None:
        self.http.close()
        self.openai.close()
        self._server.should_exit = True
        self._thread.join(30)


def served(model: Path = TALE, **parsers: str) -> TinyServer:
    """The bundled model, or another one in a folder, called "tale": for tests of answers rather than of the command, as
    an app in this process starts in a third of the time. `parsers` are those of ReplyFormats.of."""
    engine = EngineConfig.from_kwargs(model=str(model), num_threads=1)
    return TinyServer(
        command=ENGINE_COMMAND,
        folder=model,
        engine=engine,
        names=("tale",),
        parsers=parsers,
        max_body_bytes=2**24,
    )


@pytest.fixture(scope="session")
def tiny() -> Iterator[TinyServer]:
    server = TinyServer()
    yield server
    server.close()


@pytest.fixture
def doomed() -> Iterator[TinyServer]:
    """A server of one's own, to be broken."""
    server = TinyServer(step_s=0.01)
    yield server
    server.close()


@dataclass
class ServeProcess:
    """`headrace serve`, started as users start it."""

    process: subprocess.Popen[str]
    url: str
    said: str

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def descendants(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


def serve(*arguments: str, hangup: bool = False, env: Mapping[str, str] | None = None) -> ServeProcess:
    """Start a server and wait until it is ready; `hangup` sends SIGHUP while the model loads."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if hangup and "loading" in line:
            process.send_signal(signal.SIGHUP)
        if " is ready at " in line:
            said += process.stdout.readline() + process.stdout.readline()
            return ServeProcess(process, line.split(" is ready at ")[1].split()[0], said)
    process.kill()
    raise AssertionError(f"headrace serve did not start:\n{said}")


@pytest.fixture(scope="session")
def tale() -> Iterator[ServeProcess]:
    served = serve("tale", "--port", "0", "--num-threads", "1", "--served-model-name", "tale", "storyteller")
    yield served
    served.process.terminate()
    served.process.wait(30)
