"""Runs a batch: so many requests at a time through the routes of an app, each answer written as it comes."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from headrace.server.batch_input import BatchInput, Entry
from headrace.server.batch_output import BatchOutput, mark_of
from headrace.server.local_call import call

BUSY = frozenset({429, 503})
"""Answers that mean "later": the queue is full, or the engine is being started again."""

MAX_TRIES = 8
MAX_PAUSE_S = 30.0


@dataclass(slots=True)
class Progress:
    """Counts of entries. `before`: answered by earlier runs. `tokens`: of prompts and outputs, in this run."""

    total: int
    before: int = 0
    answered: int = 0
    failed: int = 0
    tokens: int = 0

    @property
    def ended(self) -> int:
        return self.before + self.answered + self.failed


async def run_batch(
    app: ASGIApp,
    source: BatchInput,
    output: BatchOutput,
    *,
    concurrency: int,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answer every entry that has no answer yet. The order of answers is that in which they come.

    Raises ConfigError when the output cannot be written.
    """
    output.check(source.entries)
    left = [entry for entry in source.entries if mark_of(entry) not in output.done]
    progress = Progress(len(source.entries), before=len(source.entries) - len(left))
    tell(progress)
    entries = iter(left)
    workers = [
        asyncio.ensure_future(_work(app, source, output, entries, progress, tell))
        for _ in range(min(concurrency, len(left)))
    ]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return progress


async def _work(
    app: ASGIApp,
    source: BatchInput,
    output: BatchOutput,
    entries: Iterator[Entry],
    progress: Progress,
    tell: Callable[[Progress], None],
) -> None:
    for entry in entries:
        if entry.fault is not None:
            output.fault(entry, "invalid_request", entry.fault)
            progress.failed += 1
        else:
            status, body = await _answer(app, *source.request(entry))
            output.answer(entry, status, _request_id(body), body)
            progress.answered += status == 200
            progress.failed += status != 200
            progress.tokens += _tokens(body)
        tell(progress)
        await asyncio.sleep(0)  # a file of faults alone would not let anybody else run


async def _answer(app: ASGIApp, path: str, body: bytes) -> tuple[int, Any]:
    """Status and body; tried again where the server was busy, up to MAX_TRIES."""
    for attempt in range(MAX_TRIES):
        status, headers, answer = await call(app, path, body)
        if status not in BUSY or attempt == MAX_TRIES - 1:
            break
        asked = headers.get("retry-after", "1")
        await asyncio.sleep(min(MAX_PAUSE_S, float(asked) if asked.isdigit() else 1.0))
    return status, json.loads(answer)


def _request_id(body: Any) -> str:
    """The answer's own id, where it has one."""
    named = body.get("id") if isinstance(body, dict) else None
    return named if isinstance(named, str) else f"req-{uuid.uuid4().hex}"


def _tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else 0
