"""Traces, if an endpoint is set and OpenTelemetry is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import MissingDependency
from headrace.extras import install_command
from headrace.server.observability.observer import Sink


@contextmanager
def tracing(endpoint: str | None, model_name: str) -> Iterator[tuple[Sink, ...]]:
    """The sinks that send a trace of each request to a collector: one, or none without an endpoint.

    Raises ConfigError for a malformed endpoint, MissingDependency without OpenTelemetry.
    """
    if endpoint is None:
        yield ()
        return
    try:
        from headrace.server.observability.spans import Spans
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "headrace":
            raise
        raise MissingDependency(
            f"--otlp-traces-endpoint needs the package {error.name}", install_command("otel")
        ) from error
    spans = Spans.sent_to(endpoint, model_name)
    try:
        yield (spans,)
    finally:
        spans.close()
