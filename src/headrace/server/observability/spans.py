"""OpenTelemetry: a span for each request to the engine, with the attributes of vLLM's spans.

Names under gen_ai.* are those of OpenTelemetry's semantic conventions, or else vLLM's.
"""

from __future__ import annotations

import os
import threading
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from headrace import __version__
from headrace.errors import ConfigError
from headrace.server.requests.record import RequestRecord, Work

SPAN = "llm_request"
EXPORT_TIMEOUT_S = 5.0
LAST_EXPORT_S = 2.0
"""Time to send spans when the server ends."""

_OPERATIONS = {"cmpl": "text_completion"}
_OTHER_OPERATION = "chat"

_HEADERS = (b"traceparent", b"tracestate")
_NS = 1_000_000_000


class Spans:
    """A sink for records of requests, with a provider of its own: nothing global changes.

    `processor` receives the spans; it must not block.
    """

    def __init__(self, model_name: str, processor: SpanProcessor) -> None:
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "headrace"}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name.encode("utf-8", "replace").decode()

    @classmethod
    def sent_to(cls, endpoint: str, model_name: str) -> Spans:
        """A thread sends spans to a collector in batches, as OTLP over HTTP. See `check_endpoint`."""
        exporter = OTLPSpanExporter(endpoint=check_endpoint(endpoint), timeout=EXPORT_TIMEOUT_S)
        return cls(model_name, BatchSpanProcessor(exporter))

    def __call__(self, record: RequestRecord) -> None:
        work = record.work
        if work is None:
            return
        begun = int(record.started * _NS)
        span = self._tracer.start_span(
            SPAN, context=self._parent(record), kind=SpanKind.SERVER, start_time=begun
        )
        if span.is_recording():
            span.set_attributes(_attributes(record, work, self._model_name))
            if record.error is not None:
                span.set_status(Status(StatusCode.ERROR))
        span.end(begun + int(record.e2e_s * _NS))

    def close(self) -> None:
        """Send pending spans, for `LAST_EXPORT_S` at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        closing.join(LAST_EXPORT_S)

    def _parent(self, record: RequestRecord) -> Context:
        """The caller's span, if a traceparent header names one."""
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in record.headers if name in _HEADERS
        }
        return self._propagator.extract(carrier, Context())


def check_endpoint(endpoint: str) -> str:
    """Raises ConfigError unless it is a URL such as http://localhost:4318/v1/traces."""
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError("--otlp-traces-endpoint takes a URL such as http://localhost:4318/v1/traces")
    return endpoint


def _attributes(record: RequestRecord, work: Work, model_name: str) -> dict[str, AttributeValue]:
    params = work.params
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(work.name.partition("-")[0], _OTHER_OPERATION),
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.request.id": work.name,
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.usage.num_sequences": len(work.finish_reasons),
        # vLLM's names, and those of the current conventions.
        "gen_ai.usage.prompt_tokens": sum(work.prompt_tokens),
        "gen_ai.usage.input_tokens": sum(work.prompt_tokens),
        "gen_ai.usage.completion_tokens": work.output_tokens,
        "gen_ai.usage.output_tokens": work.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.finish_reasons": [reason for reason in work.finish_reasons if reason is not None],
        "gen_ai.latency.time_to_first_token": record.ttft_s,
        "gen_ai.latency.e2e": record.e2e_s,
        "gen_ai.latency.time_in_queue": record.queue_s,
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "error.type": record.error or ("client_closed_request" if record.aborted else None),
    }
    found |= _engine_times(work)
    return {name: value for name, value in found.items() if value is not None}


def _engine_times(work: Work) -> dict[str, AttributeValue | None]:
    """Of the slowest prompt."""
    metrics = [one for one in work.metrics if one is not None]
    prefill = max((one.prefill_s for one in metrics if one.prefill_s is not None), default=None)
    decode = max((one.decode_s for one in metrics if one.decode_s is not None), default=None)
    return {
        "gen_ai.latency.time_in_model_prefill": prefill,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": None
        if prefill is None or decode is None
        else prefill + decode,
    }
