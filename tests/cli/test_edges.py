"""Commands at the edges of what a shell hands them: odd bytes, full disks, limits, an environment that is too old."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main
from tests import needs
from tests.places import BUNDLED, TALE

RUN = [sys.executable, "-m", "headrace"]
SHORT = ["--max-tokens", "2", "--temperature", "0", "--num-threads", "1"]


Generate = Callable[..., int]


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Generate:
    """`headrace generate` after a pipe with these bytes."""

    def run(*words: str, stdin: bytes) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        return main(["generate", *words, *SHORT, "--json"])

    return run


# ---- Prompts from a pipe ----


def test_only_newlines_separate_prompts(generate: Generate, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--file", "-", stdin=b"a\r\nb\x0cc\x1cd\xe2\x80\xa8e\n") == 0
    assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.encode().splitlines()] == [
        "a",
        "b\x0cc\x1cd\u2028e",
    ]


def test_a_byte_order_mark_is_no_part_of_the_prompt(
    generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(stdin=b"\xef\xbb\xbfOnce\r\nupon\n") == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "Once\nupon"


@pytest.mark.parametrize("words", [[], ["--file", "-"]])
def test_bytes_that_are_no_text_are_refused(
    words: list[str], generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*words, stdin=b"\xff\xfe") == 1
    assert capsys.readouterr().err == "headrace: error: standard input cannot be read: it is not UTF-8 text\n"


def test_an_argument_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "h\udcff"]) == 1  # as Python hands on a byte that its locale cannot decode
    assert capsys.readouterr().err == "headrace: error: the prompt is not UTF-8 text\n"


def test_a_file_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--file", ""]) == 1
    assert "the prompt file '' cannot be read: No such file" in capsys.readouterr().err


# ---- Locales whose encoding is not UTF-8 ----

ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_prompt_is_the_same_in_any_locale() -> None:
    done = subprocess.run(
        [*RUN, "generate", "h\u00e9 \U0001f98a".encode(), *SHORT, "--json"], env=ASCII, capture_output=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and json.loads(done.stdout)["prompt"] == "h\u00e9 \U0001f98a"


@pytest.mark.parametrize(
    "environment",
    [ASCII, pytest.param({**os.environ, "PYTHONIOENCODING": "utf-8:strict"}, marks=pytest.mark.long)],
)
def test_a_chat_goes_on_after_bytes_that_are_no_text(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*RUN, "chat", *SHORT],
        input=b"/help\nh\xff\nh\xc3\xa9\n", env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (b"max_tokens, \\u2026" if environment is ASCII else b"max_tokens, \xe2\x80\xa6") in done.stdout
    first, second = done.stderr.splitlines()
    assert first == b"error: the message is not UTF-8 text" and second.startswith(b"[2 tokens")


# ---- Output that cannot be written ----


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("word", ["--version", "--help"])
def test_a_full_disk_is_an_error(word: str, unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RUN, word], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "headrace: error: the output could not be written: No space left on device\n"


# ---- Limits of the process ----


@pytest.mark.parametrize(
    ("limit", "words", "said"),
    [
        pytest.param(
            "-v 900000",
            "generate hi --num-threads 1 --kv-cache-memory 1GB",
            "there is not enough memory",
            marks=pytest.mark.long,
        ),
        ("-n 20", "serve tale --port 0", "too many open files"),
    ],
)
def test_what_ran_out_is_named(limit: str, words: str, said: str) -> None:
    needs.native()
    done = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; exec "$0" -m headrace {words}', sys.executable],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"headrace: error: {said}") and done.stderr.count("\n") == 1


# ---- Options that are refused ----


def test_serve_checks_its_address_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the model, whose name is wrong here, and without a warning about who can reach the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, said in (
            (["--port", port], f"port {port} on 127.0.0.1 is taken"),
            (["--host", "192.0.2.1", "--port", port], f"cannot listen on 192.0.2.1 port {port}"),
        ):
            assert main(["serve", "no-such-model", *words]) == 1
            shown = capsys.readouterr()
            assert shown.err.startswith(f"headrace: error: {said}") and shown.err.count("\n") == 1
            assert shown.out == ""
    for host in ("", "a..b\udcff", "a" * 300):
        assert main(["serve", "no-such-model", "--host", host]) == 1
        shown = capsys.readouterr()
        assert shown.err.startswith("headrace: error: cannot listen on '") and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--requests", "0"], "--requests must be at least 1, got 0"),
        (["--rate", "nan"], "--rate must be above 0 and at most 1e+06 a second, got nan"),
    ],
)
def test_the_demo_says_which_option_is_wrong(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *words]) == 1
    assert capsys.readouterr().err == f"headrace: error: {said}\n"


def test_a_model_is_no_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.bin"
    file.write_bytes(b"GGUF")
    for given in (file, TALE):
        assert main(["generate", str(given), "Once"]) == 1
        assert capsys.readouterr().err == (
            f"headrace: error: {given} is a model, and not text to complete: give it with --model\n"
        )


def test_chat_says_that_it_gives_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chat", "--n", "4"])
    assert ended.value.code == 2
    assert "argument --n: a chat has one answer to each message" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-", "out.jsonl"], ["in.jsonl", "-"]])
def test_run_batch_refuses_a_dash(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run-batch", *words]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("headrace: error: - is not a file") and shown.count("\n") == 1


# ---- An environment that is older than the checkout ----

OLD_MAP = """
import sys
from importlib.util import spec_from_file_location

class EditableFinder:
    "As an editable install's: a map of each module to the file where it was."
    def find_spec(self, name, path=None, target=None):
        if name == MODULE and GONE == "moved":
            return spec_from_file_location(name, PACKAGE + "/gone.py")
        if name == MODULE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MODULE, GONE = sys.argv.pop(1), sys.argv.pop(1)
import headrace
PACKAGE = headrace.__file__.rpartition("/")[0]
sys.meta_path.insert(0, EditableFinder())
from headrace.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("gone", ["moved", "new"])
@pytest.mark.parametrize("module", ["headrace.cli", "headrace.cli.text.generate", "headrace.llm"])
def test_an_old_environment_is_one_line(module: str, gone: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OLD_MAP, module, gone, "generate", "Once", *SHORT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "headrace: error: this environment is older than the checkout: run `make demo` (or `make native`) again\n"
    )


# ---- An environment that was copied with its checkout ----


def test_a_copy_does_not_run_the_code_of_the_first_checkout(tmp_path: Path) -> None:
    needs.native()
    venv = tmp_path / "copy/.venv"
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "tree.pth").write_text(f"{BUNDLED.parent.parent}\n")
    script = venv / "bin/headrace"
    script.write_text("from headrace.__main__ import main\nmain()\n")
    own = tmp_path / "copy/src/headrace"
    own.parent.mkdir()
    for words in ([sys.executable, str(script)], [str(venv / "bin/python"), "-m", "headrace"]):
        assert subprocess.run([*words, "--version"], capture_output=True, check=False).returncode == 0
        own.mkdir()
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr == (
            f"headrace: error: {venv} runs {BUNDLED.parent}: run `make demo` in {venv.parent}, which makes it again\n"
        )
        own.rmdir()
