"""What the server adds: processor time for a request and for a token, and to the time to the first token."""

from __future__ import annotations

import http.client
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.sim.profile import ServerCost

READY = " is ready at "
WARM_UP, SHORT, LONG = 8, 40, 4
"""Requests: for the first caches, of one token, and of LONG_TOKENS tokens."""
LONG_TOKENS = 300
PROMPT, PROMPT_TOKENS = "Once upon a time there was a little fox", 10
TIMEOUT_S = 60.0


def can_serve() -> bool:
    """Whether the packages of the server extra, and the system's accounts of processes, are here."""
    packages = ("fastapi", "uvicorn", "msgspec")
    return all(importlib.util.find_spec(name) for name in packages) and Path("/proc/self/schedstat").exists()


def server_cost(model: str, threads: int, kernels: str, step_s: float) -> ServerCost:
    """Serve a model for some seconds. step_s: of a step that computes PROMPT, which is not a part of the server's time.

    Raises ConfigError where the server does not start.
    """
    command = [
        sys.executable, "-m", "headrace", "serve", model, "--port", "0", "--num-threads", str(threads),
        "--ops-force", kernels, "--no-enable-prefix-caching",
    ]  # fmt: skip
    with _running(command) as (process, address):
        for _ in range(WARM_UP):
            _ask(address, 1)
        before = _cpu_s(process)
        firsts = [_ask(address, 1) for _ in range(SHORT)]
        request_s = (_cpu_s(process) - before) / SHORT
        before = _cpu_s(process)
        for _ in range(LONG):
            _ask(address, LONG_TOKENS)
        tokens = LONG * (LONG_TOKENS - 1)
        token_s = max(0.0, _cpu_s(process) - before - LONG * request_s) / tokens
    return ServerCost(max(0.0, min(firsts) - step_s), request_s, token_s)


@contextmanager
def _running(command: list[str]) -> Iterator[tuple[int, str]]:
    """The server's process id and its address."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if READY in line), None)
        if line is None:
            raise ConfigError("the server did not start: `headrace serve tale` says why")
        yield process.pid, line.split(READY)[1].split()[0]
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def _ask(address: str, tokens: int) -> float:
    """Stream one completion; seconds to its first token."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    first = 0.0
    try:
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConfigError(f"the server refused a completion: HTTP {answer.status}")
        while line := answer.readline():
            if not first and line.startswith(b"data: {"):
                first = time.perf_counter() - start
    finally:
        connection.close()
    return first


def _cpu_s(process: int) -> float:
    """Processor time of all threads of a process so far."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) * 1e-9
