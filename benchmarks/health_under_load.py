"""Latency of `/health` while clients send the most expensive requests that the server accepts.

    python -m benchmarks.health_under_load --seconds 10

Each kind of request is sent by several clients at once, repeatedly, from a separate process; another connection
requests `/health` every 10 ms. The share of time in which the server was ready to run but had no core is printed, too:
on a machine that is busy with other work the latencies include that waiting.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PERIOD_S = 0.01

SCORED = {"prompt": [[7] * 1000] * 48, "max_tokens": 0, "echo": True, "logprobs": 20}
TALK = {"messages": [{"role": "user", "content": "Tell me a story."}]}
ALTERNATIVES = TALK | {"n": 32, "max_tokens": 256, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}
STOPS = [f"{number:02}" + "ab" * 403 for number in range(10)]

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing else": ("", {}),
    "scored prompts": ("/v1/completions", SCORED),
    "scored prompts, streamed": ("/v1/completions", SCORED | {"stream": True}),
    "alternatives": ("/v1/chat/completions", ALTERNATIVES),
    "alternatives, streamed": ("/v1/chat/completions", ALTERNATIVES | {"stream": True}),
    "a response's alternatives": (
        "/v1/responses",
        {"input": "Hello", "top_logprobs": 20, "ignore_eos": True},
    ),
    "stop strings": ("/v1/completions", {"prompt": [[7]] * 8, "n": 128, "max_tokens": 1, "stop": STOPS}),
    "echoed prompts": ("/v1/completions", {"prompt": [7] * 1000, "n": 128, "max_tokens": 1, "echo": True}),
    "many prompts": ("/v1/completions", {"prompt": [[7]] * 1024, "max_tokens": 1}),
    "lists of ids": (
        "/v1/completions",
        {"prompt": [[7]] * 16, "max_tokens": 4, "allowed_token_ids": [5] * 65_536},
    ),
    "embeddings": ("/v1/embeddings", {"input": [[7] * 20] * 1024}),
    "many messages": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}] * 10_000, "max_tokens": 1},
    ),
    "tokens": ("/tokenize", {"prompt": "a b c " * 2000, "return_token_strs": True}),
}


def post(address: tuple[str, int], path: str, body: bytes, statuses: Any, until: float) -> None:
    """Send the same request repeatedly; every answer is read to its end."""
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(*address, timeout=120)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            statuses.put(answer.status)
        finally:
            connection.close()


def load(
    address: tuple[str, int], path: str, body: bytes, callers: int, seconds: float, statuses: Any
) -> None:
    """The process of the clients."""
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=post, args=(address, path, body, statuses, until)) for _ in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def probe(address: tuple[str, int], running: Any) -> list[float]:
    """Latencies of `/health` in seconds, requested every PERIOD_S while `running()`."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    taken = []
    while running():
        begun = time.perf_counter()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        taken.append(time.perf_counter() - begun)
        time.sleep(max(0.0, PERIOD_S - taken[-1]))
    connection.close()
    return sorted(taken)


def starved_s(pid: int) -> float:
    """Seconds for which the process' main thread was ready to run and had no core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def memory_mib(pid: int) -> float:
    """The most memory that a process has held so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tale")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each kind of request")
    parser.add_argument("--callers", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    args = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", args.model, "--port", "0", "--num-threads", "1"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    line = next(line for line in server.stdout if " is ready at " in line)
    url = urlsplit(line.split(" is ready at ")[1].split()[0])
    assert url.hostname is not None and url.port is not None
    address = (url.hostname, url.port)
    spawn = multiprocessing.get_context("spawn")
    print(f"{'':28}{'answers':>24}{'p50':>9}{'p99':>9}{'most':>9}{'no core':>9}{'memory':>10}")
    try:
        for kind in args.kinds:
            path, body = KINDS[kind]
            statuses: Any = spawn.Queue()
            until = time.monotonic() + args.seconds
            callers = args.callers if path else 0
            sending = spawn.Process(
                target=load, args=(address, path, json.dumps(body).encode(), callers, args.seconds, statuses)
            )
            sending.start()
            starved, begun = starved_s(server.pid), time.monotonic()
            taken = probe(address, sending.is_alive if path else lambda end=until: time.monotonic() < end)
            share = (starved_s(server.pid) - starved) / (time.monotonic() - begun)
            sending.join()
            found: Counter[int] = Counter()
            while not statuses.empty():
                found[statuses.get()] += 1
            statuses = ", ".join(f"{count} x {status}" for status, count in sorted(found.items()))
            p50, p99 = taken[len(taken) // 2], taken[min(len(taken) - 1, int(len(taken) * 0.99))]
            print(
                f"{kind:28}{statuses:>24}{p50 * 1e3:6.1f} ms{p99 * 1e3:6.1f} ms{taken[-1] * 1e3:6.1f} ms"
                f"{share:8.0%} {memory_mib(server.pid):6.0f} MiB",
                flush=True,
            )
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
