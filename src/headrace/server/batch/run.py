"""Runs a batch: opens its files, starts an engine process and an app, and answers the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.async_llm import AsyncLLM, ProcessOptions
from headrace.config import EngineConfig
from headrace.core.types import Pooling
from headrace.errors import ConfigError
from headrace.server.access.traffic import TrafficOptions
from headrace.server.app import create_app
from headrace.server.batch.files import MAX_LINE_BYTES, BatchInput, BatchOutput
from headrace.server.batch.work import Progress, run_batch
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.text.tools.formats import AUTO, ReplyFormats

MAX_CONCURRENCY = 10_000


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """`concurrency` None: twice as many requests as the engine runs at once, so that it never idles."""

    source: Path
    output: Path
    names: Sequence[str] = ()
    concurrency: int | None = None
    overwrite: bool = False
    pooling: Pooling = Pooling.LAST
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    engine_command: Sequence[str] = ENGINE_COMMAND


def run(config: EngineConfig, options: BatchOptions, report: Callable[[Progress], None]) -> Progress:
    """Run the whole batch, or what an earlier run left of it.

    Raises ConfigError for unusable files, before the model is loaded, and what loading it raises.
    """
    if options.source.resolve() == options.output.resolve():
        raise ConfigError("the output of a batch cannot be its input")
    source = BatchInput(options.source)
    try:
        output = BatchOutput(options.output, overwrite=options.overwrite)
        try:
            output.check(source.entries)
            if all(entry.mark in output.done for entry in source.entries):
                return Progress(len(source.entries), len(source.entries), output.failed)
            return asyncio.run(_run(config, options, source, output, report))
        finally:
            output.close()
    finally:
        source.close()


async def _run(
    config: EngineConfig,
    options: BatchOptions,
    source: BatchInput,
    output: BatchOutput,
    report: Callable[[Progress], None],
) -> Progress:
    process = ProcessOptions(timeout_s=0.0, command=options.engine_command)
    async with AsyncLLM.from_config(config, process) as engine:
        app = create_app(
            engine, tuple(options.names) or (config.model,), max_body_bytes=MAX_LINE_BYTES,
            replies=ReplyFormats.of(engine.inputs.tokenizer, options.tool_call_parser, options.reasoning_parser),
            pooling=options.pooling, response_store_bytes=0,
            traffic=TrafficOptions().traffic(engine.facts),  # refuses what can never be served
        )  # fmt: skip
        concurrency = options.concurrency or min(MAX_CONCURRENCY, 2 * engine.facts.max_num_seqs)
        return await run_batch(app, source, output, concurrency=concurrency, report=report)
