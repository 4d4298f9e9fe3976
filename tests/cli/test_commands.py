"""The command line: help, errors, what each command prints."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.cli import COMMANDS, main
from headrace.cli.engine_flags import add_engine_flags, engine_options
from headrace.config import EngineConfig
from headrace.models.families import read_spec
from headrace.models.shapes import SHAPES
from headrace.plan.vllm_options import ACCEPTED, RENAMED, TRANSLATED
from headrace.program.lower import lower
from tests import gguf_bytes, needs
from tests.places import TALE

RUN = [sys.executable, "-m", "headrace"]
LISTED = [command.name for command in COMMANDS if command.summary is not None]


def test_every_engine_option_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    flags = {action.dest for action in parser._actions} - {"help"}
    assert flags == {field.name for field in dataclasses.fields(EngineConfig)} - {"model"} | {
        *RENAMED,
        *TRANSLATED,
        *ACCEPTED,
    }
    assert engine_options(parser.parse_args([])) == {}
    given = parser.parse_args(
        ["--no-enable-prefix-caching", "--max-model-len", "64", "--kv-cache-memory", "1MiB"]
    )
    assert engine_options(given) == {
        "enable_prefix_caching": False, "max_model_len": 64, "kv_cache_memory": "1MiB"
    }  # fmt: skip


@pytest.mark.parametrize("name", [*LISTED, None])
def test_help_shows_examples(name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"] if name else ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.count(f"headrace {name}" if name else "headrace ") >= 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "no-such-model"], "there is no model"),
        (["inspect", "--max-model-len", "0"], "max_model_len"),
        (["inspect", "--kv-cache-memory", "lots"], "lots"),
        (["inspect", "--quantization", "int3"], "none of the formats here"),
        (["generate", "--file", "/no/such/file"], "cannot be read"),
        (["generate", "a", "--temperature", "nan"], "temperature"),
        (["bench", "latency", "--batch-sizes", "0"], "at least 1"),
        (["bench", "throughput", "--mixed-input-len", "9", "3"], "lower length first"),
        (["demo", "--requests", "0"], "at least 1"),
        (["demo", "--rate", "nan"], "--rate"),
    ],
)
def test_errors_are_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("headrace: error: ") and said in shown.err
    assert shown.err.count("\n") == 1 and shown.out == ""


def test_inspect_plans_a_file_whose_vocabulary_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = gguf_bytes.model()
    tokens = gguf_bytes.array(8, gguf_bytes.text(b"\xff").raw * gguf_bytes.VOCAB, gguf_bytes.VOCAB)
    added = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
    path = gguf_bytes.File({**dict(file.metadata), **added}, file.tensors).write(tmp_path / "m.gguf")
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr()
    assert "a string in 'tokenizer.ggml.tokens' that is not UTF-8" in shown.out and shown.err == ""


def test_inspect_lists_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Every op of a step, and every tensor of the checkpoint; where torch runs, rows are gathered at the end."""
    needs.native()
    for options, narrow in ((["--quantization", "int4"], True), (["--ops-force", "torch"], False)):
        assert main(["inspect", "shape:tiny", "--program", *options]) == 0
        header, *lines = capsys.readouterr().out.splitlines()
        assert header.split()[:4] == ["op", "name", "layer", "rows"]
        program = lower(read_spec(SHAPES["tiny"]), narrow=narrow)
        assert [line.split()[0] for line in lines] == [op.kind for op in program.ops]
        assert all(name in "\n".join(lines) for name in program.tensors())


def test_inspect_explains_everything_without_reading_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "shape:llama-2-7b", "--dtype", "bfloat16", "--max-model-len", "64"]) in (0, 1)
    shown = capsys.readouterr()
    if shown.err:  # a machine with less than 14 GB of free memory says so
        assert "of memory is available" in shown.err or "too little for the activations" in shown.err
        return
    assert "6,738,415,616" in shown.out
    for word in ("Memory", "Ops", "Settings", "paged_attention", "max_num_seqs", "asked for"):
        assert word in shown.out


def test_generate_prints_json_for_several_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\nOne rainy morning\n", encoding="utf-8")
    words = ["generate", "--file", str(prompts), "--json", "--max-tokens", "8", "--temperature", "0"]
    assert main([*words, "--num-threads", "1", "--ignore-eos"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["prompt"] for result in results] == ["Once upon a time", "One rainy morning"]
    assert all(len(result["outputs"][0]["token_ids"]) == 8 for result in results)


def test_generate_streams_one_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Once upon a time", "--max-tokens", "8", "--num-threads", "1"]) == 0
    shown = capsys.readouterr()
    assert "8 tokens" in shown.err and "ended by length" in shown.err
    assert len(shown.out) > 10


@pytest.fixture
def not_numbers(tmp_path: Path) -> Path:
    """The bundled model with NaN for every weight."""
    folder = tmp_path / "model"
    shutil.copytree(TALE, folder)
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    file.write_bytes(raw[:begin] + struct.pack("<H", 0x7FC0) * ((len(raw) - begin) // 2))
    return folder


def test_completions_that_fail_are_an_error(
    not_numbers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--max-tokens", "4", "--num-threads", "1"]
    for prompts, failed in ((["Once"], "the completion"), (["Once", "One"], "2 completions")):
        assert main(["generate", "-m", str(not_numbers), *prompts, *options]) == 1
        *_, last = capsys.readouterr().err.splitlines()
        assert last.startswith(f"headrace: error: the engine failed on {failed}: ") and "NaN" in last
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n/retry\n"))
    assert main(["chat", str(not_numbers), *options]) == 0
    shown = capsys.readouterr().err
    assert "error: the engine failed on the completion: " in shown
    assert "nothing to retry" in shown  # it is not a part of the conversation


def test_chat_keeps_the_conversation_and_runs_commands() -> None:
    lines = [
        "Tell me a story about a fox.", "/set max_tokens 5", "Who helped?", "/set nonsense 1", "/stats", "/retry",
        "/system Be brief.", "/retry", "/unknown", "/help",
        "/set top_k 1.5", "fox " * 2000, "/exit now", "/not read",
    ]  # fmt: skip
    done = subprocess.run(
        [*RUN, "chat", "--num-threads", "1", "--max-tokens", "20", "--temperature", "0"],
        input="\n".join(lines), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[max_tokens = 5]" in done.stdout and "prefix cache" in done.stdout
    assert "conversation forgotten" in done.stdout and "/reset" in done.stdout
    assert "/set knows" in done.stderr and "nothing to retry" in done.stderr
    assert "no command /unknown" in done.stderr and "/not" not in done.stderr
    assert "top_k must be a whole number, got '1.5'" in done.stderr
    assert "/reset starts" not in done.stderr  # one message alone is too long
    assert "the model's context holds 1024" in done.stderr
    assert "prompt tokens cached" in done.stderr  # the second turn found the first in the cache


def test_chat_refuses_several_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["chat", "--n", "4"])
    assert "--n" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["chat", "--help"])
    shown = capsys.readouterr().out
    assert "--top-k" in shown and "--n N" not in shown


def test_ctrl_c_stops_an_answer_but_not_the_chat() -> None:
    """In a real terminal: interrupt a long answer, then continue the chat."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [*RUN, "chat", "--num-threads", "1", "--ignore-eos", "--max-tokens", "900"])
    try:
        seen = read_until(terminal, b"you>")
        os.write(terminal, b"Tell me a long story.\n")
        seen = read_until(terminal, b" the ")
        os.kill(child, signal.SIGINT)
        seen = read_until(terminal, b"you>")
        assert b"[stopped]" in seen
        os.write(terminal, b"/stats\n")
        assert b"0 of" in read_until(terminal, b"blocks held")
        os.write(terminal, b"/exit\n")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, expected: bytes, timeout_s: float = 60.0) -> bytes:
    seen, deadline = b"", time.monotonic() + timeout_s
    while expected not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(terminal, 4096)
    return seen


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    done = subprocess.run(
        f"{' '.join(RUN)} inspect | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
