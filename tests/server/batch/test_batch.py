"""Batches: every line answered exactly once, whatever is in it and whenever the run is killed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.cli import main
from headrace.cli.server import run_batch as run_batch_command
from headrace.errors import ConfigError, EngineDead
from headrace.server.app import create_app
from headrace.server.batch import files
from headrace.server.batch.files import BatchInput, BatchOutput
from headrace.server.batch.work import Progress, run_batch
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.supervisor import Backoff, Supervisor
from headrace.text.tokenizer import Tokenizer
from tests.running import over
from tests.server.conftest import TALE
from tests.serving.tiny_engine import COMMAND, CRASH, FAIL

Line = dict[str, Any]


def request(custom_id: object, body: object = None, url: str = "/v1/completions", **fields: object) -> Line:
    body = {"prompt": [5], "max_tokens": 3} if body is None else body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **fields}


def written(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def answers(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def complaint(path: Path, ids: Sequence[str]) -> str | None:
    """What is wrong with an output that should hold each of `ids` exactly once."""
    text = path.read_text()
    if text and not text.endswith("\n"):
        return "the last line is cut off"
    counts = Counter(answer["custom_id"] for answer in answers(path))
    twice, missing = [i for i in counts if counts[i] > 1], [i for i in ids if i not in counts]
    foreign = [i for i in counts if i not in ids]
    return f"twice {twice}, missing {missing}, foreign {foreign}" if twice or missing or foreign else None


def run(source: Path, output: Path, concurrency: int = 8, **config: object) -> Progress:
    """A batch over the counting engine."""

    async def go() -> Progress:
        client = await ProcessClient.start(
            {"step_s": 0.0005, "tokenizer_folder": str(TALE)} | config, command=COMMAND, max_in_flight=16
        )
        try:
            app = create_app(over(client, Tokenizer.from_folder(TALE)), ["tiny"])
            into = BatchOutput(output)
            try:
                return await run_batch(app, BatchInput(source), into, concurrency=concurrency)
            finally:
                into.close()
        finally:
            await client.aclose()

    return asyncio.run(go())


def test_answers_are_those_of_the_routes(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    lines = [
        request("a"),
        request("b", chat, "/v1/chat/completions"),
        request("c", {"input": [[1, 2]]}, "/v1/embeddings"),
        request("é", {"input": "Hi", "max_output_tokens": 2}, "/v1/responses"),
        request("m", chat, "/v1/messages"),
        request("bad", {"prompt": [5], "max_tokens": -1}),
        request("fails", {"prompt": [FAIL]}),
        request("model", {"prompt": [5], "model": "other"}),
    ]
    progress = run(written(tmp_path / "in", lines), tmp_path / "out")
    assert (progress.total, progress.answered, progress.failed, progress.before) == (8, 5, 3, 0)
    assert complaint(tmp_path / "out", [line["custom_id"] for line in lines]) is None
    found = {answer["custom_id"]: answer for answer in answers(tmp_path / "out")}
    assert {i: answer["response"]["status_code"] for i, answer in found.items()} == {
        "a": 200, "b": 200, "c": 200, "é": 200, "m": 200, "bad": 400, "fails": 500, "model": 404,
    }  # fmt: skip
    for answer in found.values():
        assert set(answer) == {"id", "custom_id", "response", "error"} and answer["error"] is None
        assert answer["id"].startswith("batch_req_") and answer["response"]["request_id"]
    body = found["a"]["response"]["body"]
    assert body["usage"]["completion_tokens"] == 3 and body["id"] == found["a"]["response"]["request_id"]
    assert "max_tokens" in found["bad"]["response"]["body"]["error"]["message"]
    assert progress.tokens > 10
    message = found["m"]["response"]["body"]
    assert message["type"] == "message" and message["id"] == found["m"]["response"]["request_id"]


def test_tokens_of_messages_are_counted(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    counts = []
    for name, url in (("chats", "/v1/chat/completions"), ("messages", "/v1/messages")):
        source = written(tmp_path / name, [request("a", chat, url)])
        counts.append(run(source, tmp_path / f"{name}.out").tokens)
    assert counts[0] == counts[1] > 2


BAD_LINES = {
    "not json": "not JSON",
    "[1]": "not a JSON object",
    "[" * 100_000: "not JSON",
    '{"custom_id": 5}': "custom_id",
    '{"custom_id": ""}': "custom_id",
    '{"custom_id": "\\ud800"}': "custom_id",
    json.dumps({"custom_id": "x" * 1025}): "custom_id",
    json.dumps(request("1", url="/v1/models")): "url",
    json.dumps(request("2", method="GET")): "method",
    json.dumps(request("3", body=[])): "body",
    json.dumps(request("4", {"prompt": "a", "stream": True})): "stream",
    json.dumps(request("good")): "line 1",  # again
}


def test_bad_lines_become_error_entries(tmp_path: Path) -> None:
    lines = [request("good"), "", *BAD_LINES, "   ", request("also good")]
    source = written(tmp_path / "in", lines)
    progress = run(source, tmp_path / "out")
    assert (progress.answered, progress.failed) == (2, len(BAD_LINES))
    faults = {a["error"]["line"]: a for a in answers(tmp_path / "out") if a["error"] is not None}
    for number, says in enumerate(BAD_LINES.values(), start=3):
        assert says in faults[number]["error"]["message"] and faults[number]["response"] is None
    again = run(source, tmp_path / "out")
    assert (again.before, again.answered, again.failed) == (len(BAD_LINES) + 2, 0, 0)
    assert len(answers(tmp_path / "out")) == len(BAD_LINES) + 2


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = request("a"), request("b", {"prompt": "x" * 300})
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 250)
    entries = BatchInput(written(tmp_path / "in", [long, short, long])).entries
    assert [entry.custom_id for entry in entries] == [None, "a", None]
    assert "longer than 250 bytes" in str(entries[0].fault)
    monkeypatch.setattr(files, "MAX_LINES", 2)
    with pytest.raises(ConfigError, match="more than 2 lines"):
        BatchInput(tmp_path / "in")


def test_an_output_cut_at_any_byte_is_completed(tmp_path: Path) -> None:
    """What a kill in the middle of a write leaves."""
    ids = [f"{i}" for i in range(3)]
    entries = BatchInput(written(tmp_path / "in", [request(i) for i in ids])).entries
    whole = tmp_path / "whole"
    output = BatchOutput(whole)
    for entry in entries:
        output.answer(entry, 200, "r", {"text": "öäü"})
    output.close()
    data = whole.read_bytes()
    for cut in range(len(data) + 1):
        path = tmp_path / "cut"
        path.write_bytes(data[:cut])
        output = BatchOutput(path)
        for entry in entries:
            if entry.custom_id not in output.done:
                output.answer(entry, 200, "r", {"text": "öäü"})
        output.close()
        assert complaint(path, ids) is None, cut


def test_the_check_of_outputs_finds_planted_errors(tmp_path: Path) -> None:
    path = written(tmp_path / "out", [{"custom_id": "a"}, {"custom_id": "b"}])
    assert complaint(path, ["a", "b"]) is None
    assert "missing ['c']" in str(complaint(path, ["a", "b", "c"]))
    assert "foreign ['b']" in str(complaint(path, ["a"]))
    assert "twice ['a']" in str(complaint(written(path, [{"custom_id": "a"}] * 2), ["a"]))
    path.write_text('{"custom_id": "a"}\n{"cus')
    assert "cut off" in str(complaint(path, ["a"]))


def test_requests_are_retried_while_the_engine_is_busy(tmp_path: Path) -> None:
    """More at a time than the engine takes: it refuses with 429, and nothing is lost."""
    ids = [f"{i}" for i in range(60)]
    lines = [request(i, {"prompt": [5], "max_tokens": 30, "n": 4}) for i in ids]
    refusals = 0

    async def go() -> Progress:
        nonlocal refusals
        client = await ProcessClient.start({"tokenizer_folder": str(TALE)}, command=COMMAND, max_in_flight=16)
        app = Refusals(create_app(over(client, Tokenizer.from_folder(TALE)), ["tiny"]))
        output = BatchOutput(tmp_path / "out")
        try:
            return await run_batch(app, BatchInput(source), output, concurrency=8)
        finally:
            refusals = app.seen[429]
            output.close()
            await client.aclose()

    source = written(tmp_path / "in", lines)
    progress = asyncio.run(go())
    assert refusals > 0
    assert complaint(tmp_path / "out", ids) is None
    assert progress.complete and progress.answered == 60


class Refusals:
    """An app, with a count of its refusals, none of which says how long to wait."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.seen: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.seen[message["status"] if scope["method"] == "POST" else 0] += 1
                message["headers"] = [h for h in message.get("headers", ()) if h[0] != b"retry-after"]
                message["headers"].append((b"retry-after", b"0"))
            await send(message)

        await self._app(scope, receive, counted)


def supervised(
    source: Path, output: Path, kill_at: int | None = None, concurrency: int = 8, **again: object
) -> tuple[Progress, Counter[int]]:
    """A batch over the counting engine, which is killed once so many rows have ended; the next ones start with the
    options `again`."""

    async def go() -> tuple[Progress, Counter[int]]:
        options: dict[str, object] = {"step_s": 0.001, "tokenizer_folder": str(TALE)}
        starts = 0

        async def start() -> ProcessClient:
            nonlocal starts
            starts += 1
            return await ProcessClient.start(options | (again if starts > 1 else {}), command=COMMAND)

        client = await Supervisor.start(start, Backoff(first_s=0.01, longest_s=0.02))
        killed = False

        def tell(progress: Progress) -> None:
            nonlocal killed
            if kill_at is not None and progress.answered >= kill_at and not killed:
                killed = True
                os.kill(client.pid, signal.SIGKILL)

        try:
            app = Refusals(create_app(over(client, Tokenizer.from_folder(TALE)), ["tiny"]))
            into = BatchOutput(output)
            try:
                progress = await run_batch(
                    app, BatchInput(source), into, concurrency=concurrency, report=tell, patience_s=20
                )
                assert kill_at is None or client.restarts >= 1
                return progress, app.seen
            finally:
                into.close()
        finally:
            await client.aclose()

    return asyncio.run(go())


@pytest.mark.long
def test_a_slow_restart_of_the_engine_is_waited_for(tmp_path: Path) -> None:
    """Far longer than a refused request would be tried again."""
    ids = [f"{i}" for i in range(60)]
    source = written(tmp_path / "in", [request(i, {"prompt": [5], "max_tokens": 30}) for i in ids])
    progress, seen = supervised(source, tmp_path / "out", kill_at=10, slow_load_s=1.0)
    assert seen[503] > 0, "no request was refused"
    assert complaint(tmp_path / "out", ids) is None
    assert {answer["response"]["status_code"] for answer in answers(tmp_path / "out")} == {200}
    assert progress.complete and progress.answered == 60


def test_a_row_that_kills_every_engine_fails_alone(tmp_path: Path) -> None:
    ids = [f"{i}" for i in range(30)]
    lines = [request(i, {"prompt": [CRASH if i == "7" else 5], "max_tokens": 30}) for i in ids]
    source = written(tmp_path / "in", lines)
    progress, _ = supervised(source, tmp_path / "out")
    assert (progress.answered, progress.failed, progress.unanswered) == (29, 0, 1) and not progress.complete
    assert complaint(tmp_path / "out", [i for i in ids if i != "7"]) is None
    assert {answer["response"]["status_code"] for answer in answers(tmp_path / "out")} == {200}


def test_a_dead_engine_ends_the_run_and_the_next_run_continues(tmp_path: Path) -> None:
    ids = [f"{i}" for i in range(40)]
    source = written(tmp_path / "in", [request(i, {"prompt": [5], "max_tokens": 30}) for i in ids])

    async def go() -> None:
        client = await ProcessClient.start({"step_s": 0.001, "tokenizer_folder": str(TALE)}, command=COMMAND)
        output = BatchOutput(tmp_path / "out")

        def tell(progress: Progress) -> None:
            if progress.answered == 10:
                os.kill(client.pid, signal.SIGKILL)

        try:
            app = create_app(over(client, Tokenizer.from_folder(TALE)), ["tiny"])
            await run_batch(app, BatchInput(source), output, concurrency=4, report=tell)
        finally:
            output.close()
            await client.aclose()

    with pytest.raises(EngineDead, match="cannot go on"):
        asyncio.run(go())
    assert 10 <= len(answers(tmp_path / "out")) < 40
    progress = run(source, tmp_path / "out")
    assert progress.complete and progress.before >= 10 and complaint(tmp_path / "out", ids) is None


def test_a_run_repairs_the_refusals_that_an_earlier_version_wrote(tmp_path: Path) -> None:
    ids = [f"{i}" for i in range(6)]
    source = written(tmp_path / "in", [request(i) for i in ids])
    said = {"0": 200, "1": 503, "2": 429, "3": 400, "4": 503}
    kept = [
        {
            "id": f"batch_req_{i}",
            "custom_id": i,
            "response": {"status_code": status, "body": {}},
            "error": None,
        }
        for i, status in said.items()
    ]
    output = written(tmp_path / "out", kept)
    progress = run(source, output)
    assert (progress.before, progress.failed_before, progress.answered) == (2, 1, 4) and not progress.complete
    assert complaint(output, ids) is None
    statuses = {answer["custom_id"]: answer["response"]["status_code"] for answer in answers(output)}
    assert statuses == dict.fromkeys(ids, 200) | {"3": 400}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_row_too_large_for_the_queue_is_not_retried(tmp_path: Path) -> None:
    source = written(tmp_path / "in", [request("a", {"prompt": [[5]] * 3000, "max_tokens": 1})])
    done = subprocess.run(
        command(str(source), str(tmp_path / "out")), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    (answer,) = answers(tmp_path / "out")
    assert answer["response"]["status_code"] == 400


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    source = written(tmp_path / "in", [request("a")])
    with pytest.raises(ConfigError, match="cannot be read"):
        BatchInput(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        BatchInput(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot be written"):
        BatchOutput(tmp_path / "no" / "folder")
    with pytest.raises(ConfigError, match="not a regular file"):
        BatchOutput(Path("/dev/full"))
    first = BatchOutput(tmp_path / "out")
    with pytest.raises(ConfigError, match="another run"):
        BatchOutput(tmp_path / "out")
    first.close()
    foreign = BatchOutput(written(tmp_path / "foreign", [{"custom_id": "z", "error": None}]))
    with pytest.raises(ConfigError, match="other requests, such as 'z'"):
        foreign.check(BatchInput(source).entries)
    foreign.close()
    BatchOutput(tmp_path / "foreign", overwrite=True).check(BatchInput(source).entries)
    with pytest.raises(ConfigError, match="line 2 of"):
        BatchOutput(written(tmp_path / "notes", [{"custom_id": "a"}, "my notes"]))
    assert (tmp_path / "notes").read_text().endswith("my notes\n")  # unrelated files are kept


def test_a_full_disk_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = BatchOutput(tmp_path / "out")
    entry = BatchInput(written(tmp_path / "in", [request("a")])).entries[0]
    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(ConfigError, match="No space left"):
        output.fault(entry, "x", "y")


# ---- The command ----


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "run-batch", *words, "--num-threads", "1"]


@pytest.mark.long
def test_killed_at_random_moments(tmp_path: Path) -> None:
    ids = [f"request {i}" for i in range(100)]
    lines = [request(i, {"prompt": f"Once {i}", "max_tokens": 40, "ignore_eos": True}) for i in ids]
    source, output = written(tmp_path / "in", lines), tmp_path / "out"
    words = command(str(source), str(output), "--concurrency", "6", "-m", "tale")
    rng = random.Random(4)
    killed_at = []
    for _ in range(3):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        before = size(output)
        deadline = time.monotonic() + 60
        while size(output) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()
        killed_at.append(sum(1 for _ in output.open()) if output.exists() else 0)
    assert 0 < killed_at[0] <= killed_at[1] <= killed_at[2] < 100, killed_at
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "100 requests" in done.stdout and "were there before" in done.stdout
    assert complaint(output, ids) is None
    assert all(answer["response"]["status_code"] == 200 for answer in answers(output))


@pytest.mark.long
def test_an_engine_that_is_killed_is_started_again(tmp_path: Path) -> None:
    ids = [f"{i}" for i in range(24)]
    lines = [request(i, {"prompt": f"Once {i}", "max_tokens": 40, "ignore_eos": True}) for i in ids]
    source, output = written(tmp_path / "in", lines), tmp_path / "out"
    words = command(str(source), str(output), "--concurrency", "4")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while size(output) == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (engine,) = [
        int(pid) for pid in children if b"engine-process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(engine, signal.SIGKILL)
    assert process.wait(120) == 0
    assert complaint(output, ids) is None
    assert all(answer["response"]["status_code"] == 200 for answer in answers(output))


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_progress_on_a_terminal_and_in_logs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = run_batch_command._Bar()
    for ended in (0, 1, 3):
        bar.show(Progress(3, answered=ended, tokens=10 * ended))
    bar.close()
    assert "3/3" in capsys.readouterr().err
    lines = run_batch_command._Lines()
    lines.show(Progress(3))
    monkeypatch.setattr(run_batch_command, "_QUIET_S", 0.0)
    lines.show(Progress(3, before=1, answered=1, failed=1))
    assert capsys.readouterr().err == "headrace: 3 of 3 requests, 1 failed\n"


def test_exit_codes_and_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(
        tmp_path / "in", [request("a", {"prompt": "Once", "max_tokens": 2, "model": "story"}), "junk"]
    )
    words = [
        "run-batch",
        str(source),
        str(tmp_path / "out"),
        "--num-threads",
        "1",
        "--served-model-name",
        "story",
    ]
    assert main(words) == 1
    assert "2 requests: 1 answered, 1 failed;" in capsys.readouterr().out
    assert main(words) == 1  # the output still holds the failure
    assert "0 failed, 2 were there before (1 failed);" in capsys.readouterr().out
    assert main([*words, "--overwrite"]) == 1
    written(tmp_path / "in", [request("a", {"prompt": "Once", "max_tokens": 2, "model": "story"})])
    assert main([*words, "--overwrite"]) == 0
    assert main(["run-batch", str(source), str(source)]) == 1
    assert "cannot be its input" in capsys.readouterr().err
    assert main([*words, "--concurrency", "0"]) == 1
    assert main([*words, "--concurrency", "10001"]) == 1
    assert "--concurrency must be between 1 and 10000" in capsys.readouterr().err
