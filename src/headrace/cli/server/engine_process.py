"""`headrace engine-process`: the process that runs the model for `headrace serve`; not for people to start."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from headrace import __version__
from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.models.families import weight_names
from headrace.models.identity import weights_identity
from headrace.plan.weights import parameter_count, total_weight_bytes
from headrace.program.lower import lower
from headrace.serving.engine.loop import EXIT_FAILED, EXIT_OK, EngineLoop
from headrace.serving.engine.state import ModelFacts
from headrace.serving.grammar.checker import GrammarChecker
from headrace.serving.grammar.gate import GrammarGate
from headrace.serving.logs import FORMATS, TEXT, formatter
from headrace.serving.wire.connection import Connection, ParentGone, exit_with_parent
from headrace.serving.wire.messages import Hello, failed
from headrace.sim.roofline_meter import roofline_meter
from headrace.sim.step_budget import step_budget

_log = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("engine-process", description="Run an engine for a server process.")
    parser.add_argument("--fd", type=int, required=True, metavar="N", help="inherited socket to the parent")
    parser.add_argument("--log-format", default=TEXT, choices=FORMATS)


def run(args: argparse.Namespace) -> NoReturn:
    """Serve the parent at the other end of the socket until it ends; ends this process."""
    # The parent gets the same signals, from a terminal or a service manager, and still has streams to finish. It
    # ends this process over the socket, or by its own end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = logging.StreamHandler()
    log.setFormatter(formatter(args.log_format))
    logging.basicConfig(handlers=[log])
    sock = socket.socket(fileno=args.fd)
    sock.set_inheritable(False)
    exit_with_parent(sock)
    try:
        code = serve(Connection(sock))
    except ParentGone:
        code = EXIT_OK
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk
            stream.flush()
    os._exit(code)  # the parent waits for us, and taking down torch module by module can take seconds


def serve(connection: Connection) -> int:
    """Load what the first message asks for, then run the loop. Raises ParentGone while it loads."""
    try:
        parts = assemble(_config(connection), step_budget=step_budget)
    except ParentGone:
        raise
    except Exception as error:
        # The parent prints a HeadraceError in one sentence; anything else is a bug, logged with its traceback.
        if not isinstance(error, HeadraceError):
            _log.error("the engine did not start", exc_info=error)
        connection.send(failed(error))
        return EXIT_FAILED
    grammars = _grammars(parts)
    loop = EngineLoop(
        connection, parts.engine, parts.executor, grammars=grammars,
        stream_interval_s=parts.resolved.stream_interval_s,
        meter=roofline_meter(parts.spec, parts.resolved),
    )  # fmt: skip
    try:
        return loop.run(_facts(parts))
    finally:
        grammars.close()


def _grammars(parts: EngineParts) -> GrammarGate:
    if parts.tokenizer is None:
        return GrammarGate(parts.grammars, None)
    folder, scheduler = str(parts.tokenizer_folder), parts.engine.config
    return GrammarGate(
        parts.grammars, lambda: GrammarChecker(folder, scheduler.vocab_size, scheduler.eos_ids)
    )


def _config(connection: Connection) -> EngineConfig:
    hello = connection.receive_one()
    if not isinstance(hello, Hello) or hello.version != __version__:
        raise ConfigError(
            f"the engine process is headrace {__version__}, and the process that started it is another version"
        )
    return EngineConfig.from_json(json.loads(hello.config))


def _facts(parts: EngineParts) -> ModelFacts:
    resolved, scheduler, program = (
        parts.resolved,
        parts.engine.config,
        lower(parts.spec, weight_names(parts.spec)),
    )
    return ModelFacts(
        model=resolved.model,
        vocab_size=scheduler.vocab_size,
        max_model_len=scheduler.max_model_len,
        tokenizer_folder=None if parts.tokenizer is None else str(parts.tokenizer_folder),
        device=resolved.device,
        dtype=resolved.dtype,
        max_num_seqs=resolved.max_num_seqs,
        block_size=resolved.block_size,
        num_kv_blocks=resolved.num_kv_blocks,
        hidden_size=parts.spec.hidden_size,
        sampling_defaults=dict(parts.sampling_defaults),
        family=parts.spec.family,
        num_parameters=parameter_count(program),
        weight_format=resolved.dtype if resolved.weight_format is None else resolved.weight_format.name,
        weight_bytes=total_weight_bytes(program, resolved.memory_format),
        weights_id=weights_identity(parts.source, resolved.seed).hex(),
        container="safetensors" if parts.source.files is None else "gguf",
    )
