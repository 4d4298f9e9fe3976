"""Sends the requests of a batch to the routes of an app, several at a time, and writes each answer as it comes."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from headrace.errors import EngineDead
from headrace.server.batch.files import REFUSALS, BatchInput, BatchOutput, Entry
from headrace.serving.engine.state import EngineState

MAX_DEATHS = 3
"""Engines that may die while a row runs; after that the row is postponed, and runs alone at the end."""

MAX_REFUSALS = 8
"""429 answers in a row while no other row was running; after that the row is left without an answer."""

READY_PATIENCE_S = 1800.0
"""Time for an engine to restart."""

_READY_POLL_S = 0.25
_MESSAGE_TOKENS = (
    "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
)  # fmt: skip
"""Counts of /v1/messages, which has no total."""

_MAX_PAUSE_S = 30.0


async def call(
    app: ASGIApp, path: str, body: bytes = b"", method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    """Send a JSON body; returns status, headers (names in lower case) and the answer's body.

    Cancelling it ends the request's work, as a disconnect would.
    """
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [
            (b"host", b"localhost"), (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 0), "server": ("127.0.0.1", 0), "state": {},
    }  # fmt: skip
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])
    status, headers, parts = 500, dict[str, str](), list[bytes]()

    async def receive() -> Message:
        message = next(asked, None)
        if message is None:
            await asyncio.Event().wait()  # until it is cancelled
            raise AssertionError
        return message

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update((name.decode().lower(), value.decode()) for name, value in message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, headers, b"".join(parts)


@dataclass(slots=True)
class Progress:
    """Counts of rows. `before`: answered by earlier runs, of which `failed_before` not with 200. `unanswered`: left
    for another run, because the engine died while they ran, or never accepted them. `tokens`: of prompts and outputs,
    in this run."""

    total: int
    before: int = 0
    failed_before: int = 0
    answered: int = 0
    failed: int = 0
    unanswered: int = 0
    tokens: int = 0

    @property
    def ended(self) -> int:
        return self.before + self.answered + self.failed + self.unanswered

    @property
    def complete(self) -> bool:
        """Every row has an answer with status 200."""
        return self.total == self.before + self.answered and not self.failed_before


async def run_batch(
    app: ASGIApp,
    source: BatchInput,
    output: BatchOutput,
    *,
    concurrency: int,
    report: Callable[[Progress], None] = lambda progress: None,
    patience_s: float = READY_PATIENCE_S,
) -> Progress:
    """Answer every entry that has no answer yet. Answers are written in the order in which they come.

    Refused requests (429, 503) are sent again when the queue has room or the engine is back.
    Raises ConfigError when the output cannot be written, EngineDead when the engine does not come back within
    `patience_s` seconds. The answers so far are in the output, and another run can resume.
    """
    output.check(source.entries)
    left = [entry for entry in source.entries if entry.mark not in output.done]
    progress = Progress(len(source.entries), len(source.entries) - len(left), output.failed)
    report(progress)
    batch = _Batch(app, source, output, progress, report, patience_s)
    suspects = await batch.run(left, concurrency)
    progress.unanswered = len(await batch.run(suspects, 1))
    report(progress)
    return progress


class _Left(Exception):
    """A row got no answer."""


class _Batch:
    """Rows in progress."""

    def __init__(
        self,
        app: ASGIApp,
        source: BatchInput,
        output: BatchOutput,
        progress: Progress,
        report: Callable[[Progress], None],
        patience_s: float,
    ) -> None:
        self._app = app
        self._source = source
        self._output = output
        self._progress = progress
        self._report = report
        self._patience_s = patience_s
        self._in_progress = 0  # requests without an answer

    async def run(self, entries: Sequence[Entry], concurrency: int) -> list[Entry]:
        """Answer entries, so many at a time; returns those that got no answer."""
        left: list[Entry] = []
        todo = iter(entries)
        workers = [
            asyncio.ensure_future(self._work(todo, left)) for _ in range(min(concurrency, len(entries)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return left

    async def _work(self, entries: Iterator[Entry], left: list[Entry]) -> None:
        progress = self._progress
        for entry in entries:
            if entry.fault is not None:
                self._output.fault(entry, "invalid_request", entry.fault)
                progress.failed += 1
            else:
                try:
                    status, body = await self._answer(*self._source.request(entry))
                except _Left:
                    left.append(entry)
                    continue
                self._output.answer(entry, status, _request_id(body), body)
                progress.answered += status == 200
                progress.failed += status != 200
                progress.tokens += _tokens(body)
            self._report(progress)
            await asyncio.sleep(0)  # a file that has only faults would block the event loop

    async def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and body of an answer that is not a refusal. Raises _Left, EngineDead."""
        deaths = refusals = 0
        while deaths < MAX_DEATHS and refusals < MAX_REFUSALS:
            await self._ready()
            self._in_progress += 1
            try:
                status, headers, answer = await call(self._app, path, body)
            finally:
                self._in_progress -= 1
            if status not in REFUSALS:
                return status, json.loads(answer)
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                deaths += 1
                continue
            refusals = 0 if self._in_progress else refusals + 1
            asked = headers.get("retry-after", "1")
            await asyncio.sleep(min(_MAX_PAUSE_S, float(asked) if asked.isdigit() else 1.0))
        raise _Left

    async def _ready(self) -> None:
        """Wait until the server accepts requests. Raises EngineDead."""
        deadline = time.monotonic() + self._patience_s
        while True:
            status, _, answer = await call(self._app, "/ready", method="GET")
            if status == HTTPStatus.OK:
                return
            state = json.loads(answer)
            if state["status"] == EngineState.DEAD.value:
                raise EngineDead(f"the batch cannot go on: {state['reason']}")
            if time.monotonic() > deadline:
                raise EngineDead(
                    f"the engine did not come back within {self._patience_s:g} s: {state['reason']}"
                )
            await asyncio.sleep(_READY_POLL_S)


def _request_id(body: Any) -> str:
    """The answer's own id, if it has one."""
    named = body.get("id") if isinstance(body, dict) else None
    return named if isinstance(named, str) else f"req-{uuid.uuid4().hex}"


def _tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0
    names = ("total_tokens",) if "total_tokens" in usage else _MESSAGE_TOKENS
    counts = [usage.get(name) for name in names]
    return sum(count for count in counts if isinstance(count, int))
