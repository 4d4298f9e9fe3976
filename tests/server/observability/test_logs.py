"""Logs: one line a request, as JSON or text, without callers' text; failures of the log affect no request."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.server.access.keys import Caller
from headrace.server.observability import observer
from headrace.server.requests.record import RequestRecord
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.logs import FIELDS, JsonFormatter, LogWriter, formatter
from tests.server.conftest import TinyServer
from tests.server.keyring import bearer, complete, keyed, secret
from tests.server.observability.scrape import Scrape
from tests.serving.tiny_engine import FAIL
from tests.waiting import LONG_S, until

SECRET = "The bear's password is honeycomb"


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(Caller("boss", admin=True)))
    yield server
    server.close()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """The fields of all lines of requests that begin from now on, as they come.

    The line of an earlier request may be late: a stream that its caller left is logged once it is closed.
    """
    found: list[dict[str, Any]] = []
    began = time.time()

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = json.loads(JsonFormatter().format(record))
            if record.created - line.get("e2e_s", 0) >= began:
                found.append(line)

    logger, handler = logging.getLogger("headrace.request"), Collect()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def line_of(lines: list[dict[str, Any]], count: int = 1) -> dict[str, Any]:
    """The last of so many lines; a line is written just after the end of its answer."""
    until(lambda: len(lines) >= count)
    assert len(lines) == count, lines
    return lines[-1]


def test_a_request_is_one_log_line(tiny: TinyServer, lines: list[dict[str, Any]]) -> None:
    body = {"prompt": [3] * 20, "max_tokens": 5, "n": 2}
    tiny.http.post("/v1/completions", json=body)
    line_of(lines, 1)
    answer = tiny.http.post("/v1/completions", json=body).json()
    line = line_of(lines, 2)
    assert line["id"] == answer["id"]
    assert (line["method"], line["route"], line["status"], line["level"]) == (
        "POST",
        "/v1/completions",
        200,
        "info",
    )
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (20, 16, 10)
    assert line["finish_reasons"] == ["length", "length"] and line["key"] is None
    assert line["aborted"] is False and line["error"] is None and line["stream"] is False
    assert 0 <= line["queue_s"] < line["ttft_s"] < line["e2e_s"] < 10
    assert abs(datetime.fromisoformat(line["time"]).timestamp() - time.time()) < 10


def test_endings(tiny: TinyServer, lines: list[dict[str, Any]]) -> None:
    tiny.http.post("/v1/completions", json={"prompt": [FAIL], "max_tokens": 4})
    line = line_of(lines, 1)
    assert (line["status"], line["error"], line["finish_reasons"]) == (500, "internal_error", ["error"])
    tiny.http.post(
        "/v1/completions", json={"prompt": [1], "max_tokens": 400, "timeout": 0.05, "stream": True}
    ).read()
    line = line_of(lines, 2)
    assert (line["status"], line["error"], line["finish_reasons"]) == (200, "deadline_exceeded", ["timeout"])
    tiny.http.post("/v1/completions", json={"prompt": [1] * 600})
    line = line_of(lines, 3)
    assert (line["status"], line["error"]) == (400, "context_length_exceeded") and "id" not in line
    with tiny.http.stream(
        "POST", "/v1/completions", json={"prompt": [1], "max_tokens": 400, "stream": True}
    ) as it:
        next(it.iter_lines())
    line = line_of(lines, 4)
    assert line["aborted"] is True and line["finish_reasons"] == [None]
    tiny.http.get("/no/such/path")
    assert line_of(lines, 5)["route"] == "none"


def test_every_answer_names_its_line(server: TinyServer, lines: list[dict[str, Any]]) -> None:
    chosen = {"X-Request-Id": "chosen by the caller"}
    answers = [
        complete(server, "boss"),
        complete(server, "boss", stream=True),
        complete(server, "boss", prompt=[1] * 600),
        complete(server, "stranger"),
        server.http.get("/nowhere", headers=bearer("boss") | chosen),
        server.http.get(
            "/v1/models", headers=bearer("boss") | {"Host": "localhost", "Origin": "https://evil.example"}
        ),
    ]
    line_of(lines, len(answers))
    ids = [answer.headers["x-request-id"] for answer in answers]
    # A line may be written after the next answer.
    assert sorted(ids) == sorted(line["request_id"] for line in lines) and len(set(ids)) == len(ids)
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401, 404, 403]


def test_probes_are_quiet(tiny: TinyServer, lines: list[dict[str, Any]]) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        assert tiny.http.get(path).status_code == 200
    assert line_of(lines, 1)["route"] == "/v1/models"


def hostile(server: TinyServer) -> None:
    """Requests that say secrets in every place where a caller can write."""
    fields: dict[str, object] = {name: SECRET for name in ("user", "cache_salt", "model")}
    for body in (
        {"prompt": SECRET, "max_tokens": 40, "stop": [SECRET]} | fields,
        {"prompt": SECRET, "max_tokens": 40, "cache_salt": SECRET, "user": SECRET},
        {"prompt": SECRET, "max_tokens": -1},
    ):
        for name in ("boss", "nobody"):
            complete(server, name, **body)
            chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}
            server.http.post("/v1/chat/completions", json=chat | {"user": SECRET}, headers=bearer(name))
            path = "/" + SECRET.replace(" ", "%20")
            server.http.request(
                "GET", path, headers=bearer(name) | {"User-Agent": SECRET, "traceparent": SECRET}
            )


def told_by(lines: list[dict[str, Any]]) -> str:
    return json.dumps(lines)


def test_no_log_line_holds_callers_text(
    server: TinyServer, lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "headrace"):
        hostile(server)
        line_of(lines, 18)
    text = told_by(lines) + caplog.text
    for word in ("honeycomb", secret("boss"), secret("nobody")):
        assert word not in text
    assert {line["key"] for line in lines} == {"boss", None}
    assert {line["status"] for line in lines} >= {200, 400, 401, 404}


def test_a_planted_path_is_noticed(
    server: TinyServer, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = observer.request_fields

    def leaking(record: RequestRecord) -> dict[str, object]:
        return fields(record) | {"agent": dict(record.headers).get(b"user-agent")}

    monkeypatch.setattr(observer, "request_fields", leaking)
    hostile(server)
    line_of(lines, 18)
    assert "honeycomb" in told_by(lines)


# ---- Formats ----


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("headrace.x", logging.ERROR, __file__, 1, message, args, None)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize("message", ["plain", 'a "quote"\nand a line', "\ud800", "\x1b[31m\x00", "ä模\u2028"])
def test_json_is_one_line_of_ascii(message: str) -> None:
    line = JsonFormatter().format(record(message, **{FIELDS: {"key": message, "odd": {1, 2}.__class__}}))
    assert line.isascii() and len(line.splitlines()) == 1
    reported = json.loads(line)
    assert reported["message"] == reported["key"] == message and reported["level"] == "error"


def test_json_holds_tracebacks() -> None:
    try:
        raise ValueError("the cause")
    except ValueError:
        made = record("it failed")
        made.exc_info = sys.exc_info()
    reported = json.loads(JsonFormatter().format(made))
    assert "ValueError: the cause" in reported["exception"] and reported["message"] == "it failed"


# ---- Writing ----


def test_lines_arrive_in_order(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    writer = LogWriter(fd)
    writer.setFormatter(formatter("text"))
    for number in range(500):
        writer.handle(record("line %d", number))
    writer.close()
    writer.close()
    assert (tmp_path / "log").read_text().splitlines() == [f"ERROR: line {number}" for number in range(500)]
    assert writer.dropped == 0
    os.close(fd)


def test_lost_lines_are_counted() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(fd)
    for number in range(7):
        writer.handle(record("line %d", number))
    writer.handle(record("%d", "no number"))
    writer.handle(record("\ud800"))
    writer.close()
    assert writer.dropped == 9
    os.close(fd)


def fill(handler: logging.Handler) -> threading.Thread:
    """Logs more than a pipe holds, in a thread of its own."""

    def run() -> None:
        for _ in range(3000):
            handler.handle(record("x" * 100))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_full_pipe_blocks_no_request() -> None:
    reader, fd = os.pipe()
    writer = LogWriter(fd, max_waiting=100)
    fill(writer).join()
    assert writer.dropped > 1000
    writer.close()  # after FLUSH_S: the pipe is never read
    os.close(reader)


@pytest.mark.long
def test_an_ordinary_handler_would_block() -> None:
    reader, fd = os.pipe()
    stream = os.fdopen(fd, "w")
    thread = fill(logging.StreamHandler(stream))
    time.sleep(1)
    assert thread.is_alive()
    os.close(reader)  # now its writes fail
    thread.join(LONG_S)


# ---- The whole ----


def served(stderr: Any, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", "tale", "--port", "0", "--num-threads", "1", *arguments],
        stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if " is ready at " in line:
            return process, line.split(" is ready at ")[1].split()[0]
    raise AssertionError("it did not start")


@pytest.mark.long
def test_a_server_whose_every_line_is_json(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        process, url = served(log, "--log-format", "json", "--log-level", "info")
        with httpx.Client(base_url=url, timeout=30) as http:
            http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 3})
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGKILL)
            until(lambda: "the engine runs again" in (tmp_path / "log").read_text())
        process.terminate()
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    assert any(line["logger"].startswith("uvicorn") for line in lines)
    assert any(line["level"] == "error" and "SIGKILL" in line["message"] for line in lines)
    (request,) = [line for line in lines if line["logger"] == "headrace.request"]
    assert request["output_tokens"] == 3 and request["finish_reasons"] == ["length"]


def engine_process(said: bytes) -> list[str]:
    """What an engine process writes whose parent says this, or leaves without a word."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*ENGINE_COMMAND, "--log-format", "json", "--fd", str(theirs.fileno())],
            stderr=subprocess.PIPE, pass_fds=(theirs.fileno(),), text=True,
        )  # fmt: skip
    if said:
        ours.sendall(said)
    else:
        ours.close()
    _, errors = process.communicate(timeout=60)
    ours.close()
    return errors.splitlines()


def test_an_engine_process_logs_in_the_same_form() -> None:
    (line,) = engine_process(b"\x03\x00\x00\x00abc")
    reported = json.loads(line)
    assert reported["message"] == "the engine did not start" and "Traceback" in reported["exception"]


def test_an_orphaned_engine_process_logs_nothing() -> None:
    assert engine_process(b"") == []


@pytest.mark.long
def test_a_full_disk_for_logs_fails_no_request() -> None:
    with Path("/dev/full").open("w") as full:
        process, url = served(full, "--log-format", "json", "--log-level", "info")
    with httpx.Client(base_url=url, timeout=30) as http:
        before = Scrape.take(http)
        for number in range(20):
            body = {"prompt": f"Once {number}", "max_tokens": 3}
            assert http.post("/v1/completions", json=body).status_code == 200
        until(lambda: Scrape.take(http).since(before)["log_lines_dropped_total"] >= 20)
    process.terminate()
    assert process.wait(30) == 0
