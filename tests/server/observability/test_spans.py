"""Traces: attributes of a span, its parent, and that a collector receives it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.cli import main
from headrace.server.app import create_app
from headrace.server.observability.spans import SPAN, Spans
from headrace.text.tokenizer import Tokenizer
from tests.running import over
from tests.server.conftest import TALE, TinyServer
from tests.server.observability.test_logs import served
from tests.serving.tiny_engine import FAIL

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Traced:
    """An app over the counting engine whose spans stay in memory."""

    def __init__(self, server: TinyServer) -> None:
        self._server = server
        self._exporter = InMemorySpanExporter()
        spans = Spans("tiny", SimpleSpanProcessor(self._exporter))
        self._app = create_app(over(server.client, Tokenizer.from_folder(TALE)), ["tiny"], sinks=[spans])

    def post(
        self, path: str, body: dict[str, object], headers: dict[str, str] | None = None
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.post(path, json=body, headers=headers)

        answer: httpx.Response = self._server.call(send())
        return answer

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def span(self) -> ReadableSpan:
        (span,) = self.spans
        return span


@pytest.fixture
def traced(tiny: TinyServer) -> Traced:
    return Traced(tiny)


def test_a_span_equals_the_answer(traced: Traced) -> None:
    body = {"prompt": [3] * 20, "max_tokens": 5, "n": 2, "temperature": 0.5, "top_p": 0.9, "explain": True}
    begun = time.time_ns()
    answer = traced.post("/v1/completions", body).json()
    ended = time.time_ns()
    span, usage = traced.span, answer["usage"]
    reported = dict(span.attributes or {})
    assert (span.name, span.kind, span.parent) == (SPAN, SpanKind.SERVER, None)
    assert span.resource.attributes["service.name"] == "headrace"
    assert reported["gen_ai.request.id"] == answer["id"]
    assert reported["gen_ai.operation.name"] == "text_completion"
    assert reported["gen_ai.request.model"] == reported["gen_ai.response.model"] == "tiny"
    assert (reported["gen_ai.request.n"], reported["gen_ai.request.max_tokens"]) == (2, 5)
    assert (reported["gen_ai.request.temperature"], reported["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert reported["gen_ai.usage.num_sequences"] == 2
    for old, new, count in (
        ("prompt", "input", "prompt_tokens"),
        ("completion", "output", "completion_tokens"),
    ):
        assert (
            reported[f"gen_ai.usage.{old}_tokens"] == reported[f"gen_ai.usage.{new}_tokens"] == usage[count]
        )
    assert reported["gen_ai.response.finish_reasons"] == ("length", "length")
    assert reported["http.route"] == "/v1/completions" and reported["http.response.status_code"] == 200
    assert "error.type" not in reported and span.status.status_code is StatusCode.UNSET
    (engine,) = usage["headrace"]["prompts"]
    for name, key in (
        ("in_queue", "queue_s"),
        ("in_model_prefill", "prefill_s"),
        ("in_model_decode", "decode_s"),
    ):
        assert reported[f"gen_ai.latency.time_{name}"] == pytest.approx(engine[key], abs=1e-5)
    latency = float(str(reported["gen_ai.latency.e2e"]))
    assert 0 < float(str(reported["gen_ai.latency.time_to_first_token"])) < latency
    assert span.start_time is not None and span.end_time is not None
    assert begun - 5_000_000 <= span.start_time < span.end_time <= ended + 5_000_000
    assert span.end_time - span.start_time == pytest.approx(latency * 1e9, abs=1e3)


def test_the_callers_span_is_the_parent(traced: Traced) -> None:
    traced.post("/v1/completions", {"prompt": [3], "max_tokens": 2}, {"traceparent": TRACEPARENT})
    span = traced.span
    assert span.parent is not None and span.context is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


def test_an_untraced_caller_is_not_traced(traced: Traced) -> None:
    traced.post("/v1/completions", {"prompt": [3], "max_tokens": 2}, {"traceparent": TRACEPARENT[:-1] + "0"})
    assert traced.spans == ()


@pytest.mark.parametrize(
    "header", ["", "00", "x" * 10_000, f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01"]
)
def test_a_broken_traceparent_is_ignored(traced: Traced, header: str) -> None:
    answer = traced.post("/v1/completions", {"prompt": [3], "max_tokens": 2}, {"traceparent": header})
    assert answer.status_code == 200
    assert traced.span.parent is None


def test_failures_are_marked(traced: Traced) -> None:
    traced.post("/v1/completions", {"prompt": [FAIL], "max_tokens": 2})
    assert traced.span.status.status_code is StatusCode.ERROR
    assert (traced.span.attributes or {})["error.type"] == "internal_error"


def test_chats_streams_and_requests_without_work(traced: Traced) -> None:
    chat = {
        "messages": [{"role": "user", "content": "The secret is honeycomb"}],
        "max_tokens": 2,
        "stream": True,
    }
    traced.post("/v1/chat/completions", chat)
    traced.post("/v1/completions", {"prompt": [1] * 600})  # refused
    assert (traced.span.attributes or {})["gen_ai.operation.name"] == "chat"
    assert "honeycomb" not in traced.span.to_json()


# ---- A collector ----


@pytest.fixture
def collector() -> Iterator[tuple[str, queue.Queue[ExportTraceServiceRequest]]]:
    """(address, what was posted to it)"""
    received: queue.Queue[ExportTraceServiceRequest] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            received.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    server.shutdown()
    server.server_close()


def test_a_collector_receives_the_spans_of_a_server(
    collector: tuple[str, queue.Queue[ExportTraceServiceRequest]],
) -> None:
    address, received = collector
    process, url = served(subprocess.DEVNULL, "--otlp-traces-endpoint", address)
    with httpx.Client(base_url=url, timeout=30) as http:
        ids = {
            http.post(
                "/v1/completions", json={"prompt": "Once", "max_tokens": 3}, headers={"traceparent": TRACEPARENT}
            ).json()["id"]
            for _ in range(3)
        }  # fmt: skip
    process.terminate()
    assert process.wait(30) == 0
    spans = []
    while not received.empty():
        for resource in received.get().resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "headrace"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    reported = [{one.key: one.value for one in span.attributes} for span in spans]
    assert {one["gen_ai.request.id"].string_value for one in reported} == ids
    assert all(one["gen_ai.usage.completion_tokens"].int_value == 3 for one in reported)


@pytest.mark.long
def test_an_absent_collector_blocks_no_request() -> None:
    process, url = served(subprocess.DEVNULL, "--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces")
    with httpx.Client(base_url=url, timeout=30) as http:
        for _ in range(5):
            assert http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 3}).status_code == 200
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    "endpoint", ["localhost:4318", "ftp://x/v1/traces", "http://", "http://x:99999/", "http://["]
)
def test_an_invalid_endpoint(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "tale", "--port", "0", "--otlp-traces-endpoint", endpoint]) != 0
    assert "--otlp-traces-endpoint takes a URL" in capsys.readouterr().err


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys\nfrom headrace.cli import main\nsys.modules['opentelemetry.sdk'] = None\n"
        "sys.exit(main(['serve', 'tale', '--port', '0', '--otlp-traces-endpoint', 'http://127.0.0.1:9/']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "[otel]'" in done.stderr and "Traceback" not in done.stderr
