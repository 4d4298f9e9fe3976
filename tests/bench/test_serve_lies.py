"""`headrace bench serve` against servers that misbehave: each fault is one clear line, and every request is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.report import Report, Row
from headrace.cli import main
from tests.bench.scripted_server import ScriptedServer, answer, events, honest, piece

WORDS = [
    "bench",
    "serve",
    "--num-prompts",
    "6",
    "--dataset-name",
    "random",
    "--input-len",
    "12",
    "--output-len",
    "4",
]
Start = Callable[[Callable[[int, dict[str, Any]], bytes]], ScriptedServer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server whose script gets the number of the request: 0 and 1 are the client's own first two."""
    servers: list[ScriptedServer] = []

    def begin(script: Callable[[int, dict[str, Any]], bytes]) -> ScriptedServer:
        count = iter(range(10**6))
        servers.append(ScriptedServer(lambda path, body: script(next(count), body)))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def bench(server: ScriptedServer, path: Path, *words: str) -> Report:
    out = path / "out.json"
    assert main([*WORDS, "--base-url", server.url, "--num-warmups", "0", *words, "--json", str(out)]) == 0
    return Report.from_json(json.loads(out.read_text(encoding="utf-8")))


def all_counted(row: Row, sent: int) -> bool:
    values = row.values
    return values["sent"] == sent == values["answered"] + values["refused"] + values["failed"]


def test_an_honest_server(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = start(lambda number, body: answer(honest(body)))
    report = bench(server, tmp_path, "--goodput", "ttft:60", "tpot:60")
    (row,) = report.rows
    assert all_counted(row, 6) and row.values["answered"] == 6
    assert (row.values["prompt_tokens"], row.values["output_tokens"]) == (6 * 12, 6 * 4)
    assert row.values["within_slo"] == 1 and report.notes == ()
    assert report.config["model"] == "scripted" and report.config["tokens_a_word"] == 1
    shown = capsys.readouterr().out
    assert "req/s" in shown and "TTFT p90" in shown and "E2E p99" in shown
    assert [body["max_tokens"] for body in server.seen] == [1, 1, 4, 4, 4, 4, 4, 4]
    assert "ignore_eos" not in server.seen[-1]


BUSY = answer(b'{"error": {"message": "try later"}}', "429 Too Many Requests", "Retry-After: 0\r\n")


@pytest.mark.parametrize(
    ("bad", "counted", "said"),
    [
        (BUSY, "refused", None),
        (answer(b'{"error": {"message": "it broke"}}', "500 Oops"), "failed", "HTTP 500: it broke"),
        (answer(events(piece("a"), done=False)), "failed", "the stream ended early: without [DONE]"),
        (answer(events(b"garbage")), "failed", "an event is not JSON: 'garbage'"),
        (b"garbage\r\n\r\n", "failed", "the answer is not HTTP/1.1"),
        (b"", "failed", "the connection was closed without an answer"),
        (answer(honest({"max_tokens": 4, "prompt": "x"}))[:-40], "failed", "closed in the middle"),
        (answer(honest({"max_tokens": 9, "prompt": "x"})), "failed", "counts 9 tokens, but at most 4 were requested"),
    ],
)  # fmt: skip
def test_every_third_answer_is_bad(
    bad: bytes, counted: str, said: str | None, start: Start, tmp_path: Path
) -> None:
    server = start(lambda number, body: bad if number >= 2 and number % 3 == 0 else answer(honest(body)))
    report = bench(server, tmp_path)
    (row,) = report.rows
    assert all_counted(row, 6)
    assert row.values[counted] == 2 and row.values["answered"] == 4
    assert row.values["output_tokens"] == 4 * 4, "tokens of bad answers do not count"
    if said is None:
        assert report.notes == ()
    else:
        assert any(said in note for note in report.notes), report.notes


def test_a_server_without_usage_is_measured_and_named(start: Start, tmp_path: Path) -> None:
    server = start(lambda number, body: answer(events(piece("a"), piece(" b"), piece("", "stop"))))
    report = bench(server, tmp_path)
    assert report.rows[0].values["output_tokens"] == 12
    assert any("no usage" in note for note in report.notes)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (answer(b'{"detail": "who are you?"}', "401 No"), "a first request failed: HTTP 401"),
        (answer(events(piece("a", "stop"), {"choices": [], "usage": {}})), "the usage gives no prompt_tokens"),
        (answer(honest({"max_tokens": 1, "prompt": "x"})), "counts 1 prompt tokens for 16 words and 1 for 80"),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_measured(
    script: bytes, said: str, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(lambda number, body: script)
    assert main([*WORDS, "--base-url", server.url]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headrace: error: ") and said in error and error.count("\n") == 1


def test_no_server_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--base-url", "http://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "no connection to 127.0.0.1:1" in error and error.count("\n") == 1


def test_turns_hold_what_was_answered(start: Start, tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> bytes:
        texts = [message["content"] for message in body["messages"]]
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": f"answer {len(texts)}"}, "finish_reason": "stop"}]}
        ]
        used = {"prompt_tokens": len(" ".join(texts).split()), "completion_tokens": 1}
        return answer(events(*chunks, {"choices": [], "usage": used}))

    server = start(script)
    words = [
        "--backend",
        "openai-chat",
        "--dataset-name",
        "multi_turn",
        "--num-turns",
        "3",
        "--num-prompts",
        "2",
    ]
    (row,) = bench(server, tmp_path, *words).rows
    assert all_counted(row, 6)
    longest = max(server.seen, key=lambda body: len(body["messages"]))["messages"]
    assert [message["role"] for message in longest] == ["user", "assistant", "user", "assistant", "user"]
    assert (longest[1]["content"], longest[3]["content"]) == ("answer 1", "answer 3")


def test_a_session_ends_with_a_turn_that_fails(start: Start, tmp_path: Path) -> None:
    server = start(lambda number, body: BUSY if number >= 4 else answer(honest(body)))
    words = ["--dataset-name", "multi_turn", "--num-turns", "3", "--num-prompts", "2"]
    (row,) = bench(server, tmp_path, *words).rows
    assert row.values["answered"] == 2 and all_counted(row, 4)


def test_keys_and_extra_fields_are_sent(start: Start, tmp_path: Path) -> None:
    server = start(lambda number, body: answer(honest(body)))
    bench(
        server,
        tmp_path,
        "--ignore-eos",
        "--extra-body",
        '{"top_k": 3, "temperature": 1}',
        "--api-key",
        "secret",
    )
    assert all(
        body["ignore_eos"] is True and (body["top_k"], body["temperature"]) == (3, 1) for body in server.seen
    )
    assert "secret" not in (tmp_path / "out.json").read_text(encoding="utf-8")
