"""A long soak test of `headrace serve`: no request is lost, and its memory does not grow.

    python -m benchmarks.soak --minutes 30 --json soak.json

Clients stream, disconnect during an answer, send stop strings and request several completions, all at once and
without pause. Resident memory of server and engine process is sampled; a least-squares line through the samples after
the warm-up gives its slope. At the end the engine must be idle, with every block free, and a greedy prompt must still
get the tokens that it got at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serve_overhead import Served
from benchmarks.server_metrics import read_metrics
from headrace.bench.serving.http_client import Address, Connection, HttpError, request_bytes
from headrace.bench.serving.serve import run
from headrace.bench.serving.stream import EventBody, StreamError, read_stream
from headrace.sim.workload.sessions import words

KINDS = ("plain", "leaves", "stops", "several", "logprobs", "chat", "wrong")
GREEDY = {"prompt": "Once upon a time there was", "temperature": 0, "max_tokens": 24}


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since the start; resident bytes by process."""

    at_s: float
    bytes: dict[str, int]


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def slope_bytes_per_minute(samples: Sequence[Sample], process: str, warmup_s: float) -> float:
    """The slope of the least-squares line through the samples after the warm-up."""
    kept = [sample for sample in samples if sample.at_s >= warmup_s]
    line = statistics.linear_regression(
        [sample.at_s / 60 for sample in kept], [sample.bytes[process] for sample in kept]
    )
    return line.slope


class Churn:
    """Clients until a deadline. `counts`: requests by kind and ending; `wrong`: failures."""

    def __init__(self, address: Address, seed: int) -> None:
        self._address = address
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def client(self, until: float) -> None:
        while time.monotonic() < until:
            kind = self._rng.choice(KINDS)
            try:
                ended = await self._one(kind)
            except (HttpError, StreamError) as error:
                ended = "failed"
                self.wrong.append(f"{kind}: {error}")
            self.counts[f"{kind} {ended}"] += 1
            if ended == "refused":
                await asyncio.sleep(0.2)

    async def _one(self, kind: str) -> str:
        rng = self._rng
        limit = rng.choice((4, 16, 48, 120))
        body: dict[str, Any] = {"max_tokens": limit, "temperature": rng.choice((0, 1.0)), "stream": True}
        body["stream_options"] = {"include_usage": True}
        text = words(rng, rng.choice((3, 20, 90)))
        path = "/v1/completions"
        if kind == "chat":
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if kind == "stops":
            body["stop"] = rng.sample(("a", "the", ".", "and", "said"), 2)
        elif kind == "several":
            body |= {"n": rng.choice((2, 3, 5)), "temperature": 1.0}
        elif kind == "logprobs":
            body["logprobs"] = 3
        elif kind == "wrong":
            body["temperature"] = -1
        request = request_bytes(self._address, "POST", path, json.dumps(body).encode())
        connection, events = await self._connect(), EventBody()
        try:
            if kind == "leaves":
                try:
                    async with asyncio.timeout(1.5 * 0.01 ** rng.random()):  # before or after the answer
                        await connection.ask(request, events)
                except TimeoutError:
                    return "left"
                return "answered"
            head = await connection.ask(request, events)
        finally:
            connection.close()
        if head.status == 429:
            return "refused"
        if kind == "wrong":
            if head.status != 400:
                raise StreamError(f"a wrong request got {head.status}")
            return "answered"
        if head.status != 200:
            raise StreamError(f"status {head.status}: {events.data[:200]!r}")
        read_stream(events, limit * int(body.get("n", 1)))
        return "answered"

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(Connection, self._address.host, self._address.port)
        except OSError as error:
            raise HttpError(f"no connection: {error}") from error
        return connection


async def ask(address: Address, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """A complete answer, as JSON."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, address.host, address.port)
    answer = EventBody()
    content = b"" if body is None else json.dumps(body).encode()
    head = await connection.ask(request_bytes(address, method, path, content), answer)
    connection.close()
    if head.status != 200:
        raise SystemExit(f"{path}: status {head.status}: {answer.data[:200]!r}")
    return json.loads(answer.data)


async def soak(args: argparse.Namespace, served: Served) -> dict[str, Any]:
    address = Address.of(served.url)
    before = (await ask(address, "POST", "/v1/completions", GREEDY))["choices"][0]["text"]
    churn = Churn(address, args.seed)
    start = time.monotonic()
    samples: list[Sample] = []
    clients = [asyncio.ensure_future(churn.client(start + args.minutes * 60)) for _ in range(args.clients)]
    waiting = asyncio.gather(*clients)
    while not waiting.done():
        at = time.monotonic() - start
        samples.append(Sample(at, {name: resident_bytes(pid) for name, pid in served.pids.items()}))
        if len(samples) % 12 == 0:
            sizes = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in samples[-1].bytes.items())
            print(
                f"{at / 60:5.1f} min  {sizes}  {sum(churn.counts.values())} requests",
                file=sys.stderr,
                flush=True,
            )
        await asyncio.wait({waiting}, timeout=args.sample_s)
    await waiting
    await asyncio.sleep(1.0)
    after = (await ask(address, "POST", "/v1/completions", GREEDY))["choices"][0]["text"]
    if after != before:
        churn.wrong.append("a greedy prompt got other tokens at the end than at the start")
    metrics = await read_metrics(address)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "engine_restarts_total",
    ):
        if value := metrics.value(name):
            churn.wrong.append(f"{name} is {value:g} at the end")
    warmup_s = args.minutes * 60 * args.warmup
    return {
        "minutes": args.minutes,
        "clients": args.clients,
        "requests": dict(sorted(churn.counts.items())),
        "wrong": churn.wrong[:20],
        "slope_bytes_per_minute": {
            name: slope_bytes_per_minute(samples, name, warmup_s) for name in served.pids
        },
        "resident_bytes": {name: [samples[0].bytes[name], samples[-1].bytes[name]] for name in served.pids},
        "loop_lag_within_100_ms": metrics.share_within("event_loop_lag_seconds", 0.1),
        "samples": [[sample.at_s, *sample.bytes.values()] for sample in samples],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tale")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument(
        "--warmup", type=float, default=0.2, help="part of the time whose samples do not count"
    )
    parser.add_argument("--sample-s", type=float, default=5.0)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--streams", type=int, default=32, help="the engine's --max-num-seqs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the result, samples included, to this file")
    args = parser.parse_args()
    served = Served(args)
    try:
        result = run(soak(args, served))
    finally:
        served.close()
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    samples = result.pop("samples")
    print(json.dumps(result, indent=2))
    print(f"{len(samples)} samples")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
