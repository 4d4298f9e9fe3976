"""`headrace serve tale`: engines that are killed or stopped, servers that are, and signals under load."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import ServeProcess, serve
from tests.server.raw_http import answer, connect, post, read_all
from tests.serving.client.test_process_client import alive
from tests.waiting import LONG_S, until

START_S = 40  # most for a start on a crowded machine; it takes half a second on a quiet one
STORY: dict[str, Any] = {"model": "tale", "prompt": "Once upon a time there was", "temperature": 0.0}
LONG = STORY | {"max_tokens": 950}


@contextmanager
def served(*arguments: str) -> Iterator[ServeProcess]:
    """A server of one's own, none of whose processes is left."""
    server = serve("tale", "--port", "0", "--num-threads", "1", *arguments)
    processes = [server.process.pid, *server.descendants()]
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait(LONG_S)
        until(lambda: not any(map(alive, processes)))


class Reader(threading.Thread):
    """Reads one stream, in a thread of its own."""

    def __init__(self, server: ServeProcess, count: int = 1, **options: Any) -> None:
        super().__init__(daemon=True)
        self._client = server.openai()
        self._options = LONG | {"extra_body": {"ignore_eos": True}} | options
        self.begun = threading.Event()
        self.text = ""
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            for chunk in self._client.completions.create(**self._options, stream=True):
                self.text += chunk.choices[0].text
                self.finish_reason = chunk.choices[0].finish_reason
                self.begun.set()
        except openai.APIError as error:
            self.error = error
        finally:
            self.begun.set()


def readers(server: ServeProcess, count: int, **options: Any) -> list[Reader]:
    """Streams that have begun."""
    started = [Reader(server, **options) for _ in range(count)]
    for reader in started:
        assert reader.begun.wait(LONG_S) and reader.error is None
    return started


def health(server: ServeProcess) -> tuple[int, dict[str, Any]]:
    reply = httpx.get(f"{server.url}/health", timeout=LONG_S)
    return reply.status_code, reply.json()


def story(server: ServeProcess) -> str:
    return str(server.openai().completions.create(**STORY, max_tokens=12).choices[0].text)


# ---- Engines that end ----


@pytest.mark.parametrize(
    ("number", "timeout"),
    [(signal.SIGKILL, "600"), pytest.param(signal.SIGSTOP, "1", marks=pytest.mark.long)],
)
def test_an_engine_that_dies_or_hangs(number: signal.Signals, timeout: str) -> None:
    with served("--engine-timeout", timeout) as server:
        before = story(server)
        streams = readers(server, 3)
        (engine,) = server.descendants()
        os.kill(engine, number)
        for reader in streams:
            reader.join(LONG_S)
            assert isinstance(reader.error, openai.APIError) and "engine" in str(reader.error)

        assert httpx.get(f"{server.url}/ready").status_code == 503
        status, body = health(server)
        assert status == 503 and body["status"] == "engine restarting" and body["reason"]
        with pytest.raises(openai.InternalServerError) as caught:
            story(server)
        assert caught.value.status_code == 503 and caught.value.code == "engine_dead"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 3
        assert httpx.get(f"{server.url}/v1/models").status_code == 200  # what needs no engine is there

        until(lambda: health(server)[0] == 200, START_S)
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert story(server) == before
        assert not alive(engine) and len(server.descendants()) == 1
        assert server.process.poll() is None


def descendants(pid: int) -> list[int]:
    """The processes below one, at any depth."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def grammar_worker(server: ServeProcess) -> tuple[int, int]:
    """(the engine, the process that compiles its grammars), once a request has needed both."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answer_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    chat = {"messages": [{"role": "user", "content": "a"}], "response_format": answer_format}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=chat | {"max_tokens": 20}, timeout=60)
    assert reply.status_code == 200
    (engine,) = server.descendants()
    (worker,) = descendants(engine)
    return engine, worker


def test_processes_end_with_their_parents() -> None:
    """Those of the engine with it, both with the server: while they work, and stopped, when they notice nothing."""
    with served() as server:
        engine, worker = grammar_worker(server)
        os.kill(worker, signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        until(lambda: not alive(worker))
        until(lambda: server.descendants() not in ([], [engine]))  # before that it may not have noticed
        until(lambda: health(server)[0] == 200, START_S)
        engine, worker = grammar_worker(server)
        readers(server, 4)
        os.kill(worker, signal.SIGSTOP)
        server.process.kill()
        until(lambda: not alive(engine) and not alive(worker))


@pytest.mark.long
def test_a_stopped_engine_ends_with_its_server() -> None:
    with served() as server:
        readers(server, 4)
        (engine,) = server.descendants()
        os.kill(engine, signal.SIGSTOP)
        server.process.kill()
        until(lambda: not alive(engine))


@pytest.mark.long
def test_the_server_may_die_while_it_restarts_its_engine() -> None:
    with served() as server:
        (engine,) = server.descendants()
        os.kill(engine, signal.SIGKILL)
        until(lambda: bool(server.descendants()) and server.descendants() != [engine])
        (engine,) = server.descendants()
        server.process.kill()
        until(lambda: not alive(engine))


# ---- Signals ----


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_under_load(number: signal.Signals) -> None:
    with served() as server:
        streams = readers(server, 3)
        (engine,) = server.descendants()
        early = connect(server.url)
        os.kill(engine, number)  # as a service manager or a terminal does with all processes at once
        server.process.send_signal(number)
        until(lambda: httpx.post(f"{server.url}/v1/completions", json=STORY).status_code == 503)
        assert any(reader.is_alive() for reader in streams), "the streams ended before the refusal"
        early.sendall(post(STORY))
        refusal = answer(early)
        assert refusal.status == 503 and refusal.closed and refusal.headers["retry-after"] == "5"
        assert refusal.error["code"] == "shutting_down"
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert health(server)[0] == 200  # it is alive, and should not be killed for not being so
        for reader in streams:
            reader.join(LONG_S)
            assert reader.error is None and reader.finish_reason == "length"
        assert len({reader.text for reader in streams}) == 1
        assert server.process.wait(LONG_S) == 0
        assert not alive(engine)


@pytest.mark.long
def test_half_a_request_does_not_delay_the_end() -> None:
    with served("--shutdown-timeout", "600") as server:
        half = [connect(server.url) for _ in range(20)]
        for index, caller in enumerate(half):
            caller.sendall(post(STORY)[:-5] if index % 2 else b"GET /health HTTP/1.1\r\n")
        assert health(server)[0] == 200  # what came before has been read
        server.process.terminate()
        refusal = answer(half[1])
        assert refusal.status == 503 and refusal.error["code"] == "shutting_down"
        assert server.process.wait(LONG_S) == 0


@pytest.mark.long
def test_the_deadline_of_a_shutdown() -> None:
    with served("--shutdown-timeout", "1") as server:
        (stuck,) = readers(server, 1)
        (engine,) = server.descendants()
        os.kill(engine, signal.SIGSTOP)
        started = time.monotonic()
        server.process.terminate()
        assert server.process.wait(LONG_S) == 0
        assert time.monotonic() - started >= 1
        stuck.join(LONG_S)
        assert "shut down" in str(stuck.error)
        assert not alive(engine)


@pytest.mark.long
def test_a_thread_that_cannot_be_stopped() -> None:
    """A text of twelve megabytes is being tokenized, which takes longer than the shutdown may."""
    with served("--shutdown-timeout", "1", "--attention-sinks", "4", "--sliding-window", "252") as server:
        (engine,) = server.descendants()
        with connect(server.url) as caller:
            caller.sendall(post(STORY | {"prompt": "a word or two " * 900_000}))
            time.sleep(0.5)
            assert health(server)[0] == 200  # the event loop is free
            started = time.monotonic()
            server.process.terminate()
            assert server.process.wait(LONG_S) == 0
            assert time.monotonic() - started >= 1
            assert read_all(caller) == b""  # the shutdown did not wait for the tokenizer
        until(lambda: not alive(engine))


@pytest.mark.long
def test_a_second_signal_does_not_wait() -> None:
    with served() as server:
        readers(server, 1)
        (engine,) = server.descendants()
        os.kill(engine, signal.SIGSTOP)
        server.process.terminate()
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.terminate()
        assert server.process.wait(LONG_S) == 128 + signal.SIGTERM  # the first one alone would end with 0
        assert not alive(engine)


@pytest.mark.parametrize(
    "delays_s",
    [(0.0, 0.1), pytest.param((0.02, 0.05, 0.2, 0.4), marks=pytest.mark.long)],
    ids=["few", "more"],
)
def test_signals_before_there_are_handlers(delays_s: tuple[float, ...]) -> None:
    """Sent so early that Python itself is still starting, or we are: the process ends, whatever it was doing."""
    for delay_s in delays_s:
        process = subprocess.Popen([*COMMAND, "tale", "--port", "0"], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        process.terminate()
        assert process.wait(LONG_S) in (0, -signal.SIGTERM)


# ---- Surroundings ----

COMMAND = (sys.executable, "-m", "headrace", "serve")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def comes_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long
@pytest.mark.parametrize(
    "redirection",
    ["> /dev/full 2> /dev/full", "2>&1 | head -1 > /dev/null", "< /dev/null >&- 2>&-"],
    ids=["disk full", "reader gone", "closed"],
)
def test_output_that_is_never_read(redirection: str) -> None:
    """The server continues, and its exit code is 0."""
    port = free_port()
    words = f"{' '.join(COMMAND)} tale --port {port} --num-threads 1 --log-level info"
    script = f"set -o pipefail; {words} {redirection}"
    shell = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    try:
        until(lambda: comes_up(port), START_S)
        url = f"http://127.0.0.1:{port}"
        for _ in range(3):
            reply = httpx.post(f"{url}/v1/completions", json=STORY | {"max_tokens": 3})
            assert reply.status_code == 200
        if "full" in redirection:
            (engine,) = engines(shell.pid)
            os.kill(engine, signal.SIGKILL)  # which is worth several lines
            until(lambda: not comes_up(port))
            until(lambda: comes_up(port), START_S)
        os.killpg(shell.pid, signal.SIGINT)
        assert shell.wait(LONG_S) in (0, 128 + signal.SIGINT)  # the latter if the shell was interrupted, too
        assert not comes_up(port)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)


def engines(session: int) -> list[int]:
    """The engine processes of a session."""
    listing = subprocess.run(
        ["ps", "-s", str(session), "-o", "pid=,args="], capture_output=True, text=True, check=True
    )
    return [int(line.split()[0]) for line in listing.stdout.splitlines() if "engine-process" in line]


@pytest.mark.long
def test_two_servers_that_start_at_once() -> None:
    port = free_port()
    both = [
        subprocess.Popen([*COMMAND, "tale", "--port", str(port)], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        until(lambda: any(process.poll() is not None for process in both), START_S)
        first, second = sorted(both, key=lambda process: process.poll() is None)
        assert first.stderr is not None
        assert first.poll() == 1 and "is taken" in first.stderr.read()
        until(lambda: comes_up(port), START_S)
        second.terminate()
        assert second.wait(LONG_S) == 0
    finally:
        for process in both:
            process.kill()
            process.wait()


# ---- Too much to ask ----


def test_a_million_characters(tale: ServeProcess) -> None:
    chat = {"model": "tale", "messages": [{"role": "user", "content": "word " * 200_000}]}
    for path, body in (("completions", STORY | {"prompt": "word " * 200_000}), ("chat/completions", chat)):
        reply = httpx.post(f"{tale.url}/v1/{path}", json=body, timeout=LONG_S)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "characters" in reply.json()["error"]["message"]  # refused before it is tokenized
    assert story(tale)


@pytest.mark.long
def test_a_request_larger_than_the_pool() -> None:
    with served("--num-kv-blocks", "4", "--block-size", "16") as server:
        client = server.openai()
        for prompt, length in (([5] * 100, 1), ([5] * 40, 25)):
            with pytest.raises(openai.BadRequestError, match="the context holds 64 tokens") as caught:
                client.completions.create(model="tale", prompt=prompt, max_tokens=length)
            assert caught.value.code == "context_length_exceeded"
        full = client.completions.create(
            model="tale", prompt=[5] * 40, max_tokens=24, extra_body={"ignore_eos": True}
        )
        assert full.usage is not None and full.usage.total_tokens == 64
