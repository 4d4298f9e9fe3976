"""`headrace serve tale` as users run it, with the official client."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import openai
import pytest

from headrace.cli import main
from tests.server.conftest import ServeProcess, serve

STORY = {"prompt": "Once upon a time there was", "temperature": 0.0, "max_tokens": 12}
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]


def test_the_ready_line(tale: ServeProcess) -> None:
    assert f"headrace: tale is ready at {tale.url}" in tale.said
    assert f"curl {tale.url}/v1/completions" in tale.said


def test_completions(tale: ServeProcess) -> None:
    client = tale.openai()
    whole = client.completions.create(model="tale", **STORY)  # type: ignore[call-overload]
    assert len(whole.choices[0].text.split()) > 3
    assert whole.usage.completion_tokens == 12
    streamed = client.completions.create(model="storyteller", **STORY, stream=True)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_a_seed_gives_the_same_answer(tale: ServeProcess) -> None:
    client = tale.openai()
    first, second = (
        client.completions.create(model="tale", prompt="Once", max_tokens=10, temperature=1.0, seed=7, n=2)
        for _ in range(2)
    )
    assert [choice.text for choice in first.choices] == [choice.text for choice in second.choices]
    assert first.choices[0].text != first.choices[1].text


def test_chat(tale: ServeProcess) -> None:
    client = tale.openai()
    options = {"model": "tale", "messages": MESSAGES, "temperature": 0.0, "max_tokens": 12}
    whole = client.chat.completions.create(**options)  # type: ignore[call-overload]
    chunks = client.chat.completions.create(**options, stream=True)  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert len(text.split()) > 3


def test_concurrent_streams(tale: ServeProcess) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{tale.url}/v1", api_key="none", max_retries=0) as client:

            async def one() -> str:
                stream = await client.completions.create(model="tale", **STORY, stream=True)  # type: ignore[call-overload]
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one() for _ in range(8)))

    assert len(set(asyncio.run(run()))) == 1


def test_errors(tale: ServeProcess) -> None:
    with pytest.raises(openai.NotFoundError):
        tale.openai().completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError):
        tale.openai().completions.create(model="tale", prompt="x", max_tokens=5000)


def test_a_taken_port(tale: ServeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    port = tale.url.rsplit(":", 1)[1]
    assert main(["serve", "tale", "--port", port]) == 1
    error = capsys.readouterr().err
    assert error == f"headrace: error: port {port} on 127.0.0.1 is taken; choose another with --port\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "70000"], "--port must be between 0 and 65535, got 70000"),
        (["--host", "256.1.2.3"], "cannot listen on 256.1.2.3"),
        (["--max-queue", "0"], "--max-queue must be between 1 and 1000000, got 0"),
        *(
            (["--max-connections", value], f"--max-connections must be between 1 and 1000000, got {value}")
            for value in ("0", "1000001")
        ),
        (["--max-header-bytes", "16777217"], "--max-header-bytes must be between 1024 and "),
        (["--header-timeout", "86401"], "--header-timeout must be between 0.1 and 86400, got 86401.0"),
        (["--header-timeout", "nan"], "--header-timeout must be between 0.1 and 86400, got nan"),
        (["--body-timeout", "0"], "--body-timeout must be between 0.1 and 86400, got 0.0"),
        (["--body-timeout", "86401"], "--body-timeout must be between 0.1 and 86400, got 86401.0"),
        (["--keep-alive-timeout", "86401"], "--keep-alive-timeout must be between 1 and 86400, got 86401"),
        (
            ["--slow-reader-timeout", "86401"],
            "--slow-reader-timeout must be between 0.1 and 86400, got 86401.0",
        ),
        (["--shutdown-timeout", "86401"], "--shutdown-timeout must be between 0 and 86400, got 86401"),
        (["--engine-timeout", "86401"], "--engine-timeout must be between 0 and 86400, got 86401.0"),
        (["--engine-timeout", "-1"], "--engine-timeout must be between 0 and 86400, got -1.0"),
        (["--batching", "never"], "batching must be one of"),
        *(
            (["--served-model-name", "good", name], "--served-model-name takes names of 1 to 1024 printable")
            for name in ("", "a\nb", "a" * 1025)
        ),
    ],
)
def test_invalid_options_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "tale", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headrace: error: {sentence}") and error.count("\n") == 1


def test_a_missing_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "no-such-model", "--port", "0"]) == 1
    error = capfd.readouterr().err  # of the engine process, too
    assert error.startswith("headrace: error: there is no model 'no-such-model'")
    assert error.count("\n") == 1


def test_a_missing_package_is_named() -> None:
    hidden = (
        "import sys; sys.modules['fastapi'] = None; from headrace.cli import main; sys.exit(main(['serve']))"
    )
    outcome = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 1
    assert "[server]'" in outcome.stderr and outcome.stderr.count("\n") == 1


@pytest.mark.long  # as under load in test_faults_process.py
def test_a_signal_lets_streams_finish_and_leaves_no_child() -> None:
    served = serve("tale", "--port", "0", "--num-threads", "1")
    (engine,) = served.descendants()
    stream = served.openai().completions.create(model="tale", prompt="Once", max_tokens=150, stream=True)
    next(iter(stream))
    os.kill(engine, signal.SIGTERM)  # as a service manager does with all processes at once
    served.process.send_signal(signal.SIGTERM)
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert len(text.split()) > 20
    assert served.process.wait(30) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)
    host, port = served.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def _interrupted(delay_s: float) -> tuple[int, str]:
    """Exit code and later output of a server that is interrupted so long after it began to load."""
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", "tale", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "loading" in process.stdout.readline()
            time.sleep(delay_s)
            process.send_signal(signal.SIGINT)
            code = process.wait(30)
            return code, process.stdout.read()
        finally:
            process.kill()


def test_a_signal_while_the_model_loads() -> None:
    code, output = _interrupted(
        0.05
    )  # the engine process is starting; the whole load takes a quarter of a second
    assert code == 0
    assert "ready" not in output


@pytest.mark.parametrize(
    "delay_s",
    [0.2, *(pytest.param(delay_s, marks=pytest.mark.long) for delay_s in (0.1, 0.15, 0.25, 0.3, 0.35))],
)
def test_no_signal_during_the_start_is_lost(delay_s: float) -> None:
    assert _interrupted(delay_s)[0] in (0, 130)
