"""The first hour of a new user: trying commands, typing errors, pipes, interrupts, and the output of each."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.parser import program, typed
from headrace.models.source import BUNDLED_FOLDER

RUN = [sys.executable, "-m", "headrace"]
SHORT = ["--max-tokens", "4", "--temperature", "0", "--num-threads", "1"]


def run(*words: str, stdin: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*RUN, *words], input=stdin, text=True, stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE, "check": False, "timeout": 120, **options},
    )  # fmt: skip


# ---- Usage ----


@pytest.mark.parametrize("words", [[], ["bench"]])
def test_a_bare_command_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert " ".join(["usage: headrace", *words]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        (["generate", "x", "--temprature", "0"], "generate [options] [PROMPT ...]", "arguments: --temprature 0"),
        (["generate", "--temperature", "warm"], "generate [options] [PROMPT ...]", "invalid float value: 'warm'"),
        (["serve", "--prot", "1"], "serve [options] [MODEL]", "unrecognized arguments: --prot"),
        (["chat", "--model", "x"], "chat [options] [MODEL]", "--model; give the model without --model"),
        (["bench", "latency", "--batch", "1"], "bench latency [options]", "unrecognized arguments: --batch 1"),
        (["bench", "latency", "--bach", "1"], "bench latency [options]", "unrecognized arguments: --bach 1"),
        (["bench", "latncy"], "bench KIND ...", "invalid choice: 'latncy'"),
        (["run-batch", "in.jsonl"], "run-batch [options] IN OUT", "required: OUT"),
        (["generat"], "[-h] [--version] COMMAND ...", "invalid choice: 'generat'"),
    ],
)  # fmt: skip
def test_wrong_arguments_show_the_usage_of_their_command(
    words: list[str], usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"usage: headrace {usage}"
    assert said in lines[1]
    assert lines[2].startswith("For all options: headrace ") and lines[2].endswith(" --help")
    assert len(lines) == 3


# ---- Commands that are printed can be typed ----


def test_commands_are_printed_as_they_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / ".venv/bin/headrace"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    text = "try `headrace chat`, or:\n  headrace serve tale\nheadrace: error: headrace is here"
    monkeypatch.setattr(sys, "argv", [str(script), "demo"])
    monkeypatch.chdir(tmp_path)
    assert program() == ".venv/bin/headrace"
    assert typed(text) == (
        "try `.venv/bin/headrace chat`, or:\n  .venv/bin/headrace serve tale\nheadrace: error: headrace is here"
    )
    monkeypatch.chdir("/usr")
    assert program() == str(script)
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "headrace" and typed(text) == text


def test_a_current_folder_that_was_deleted_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", ["/elsewhere/headrace"])
    assert program() == "/elsewhere/headrace"


def test_help_and_errors_name_the_program_that_was_started() -> None:
    done = run("bench", cwd="/usr")
    name = f"{sys.executable} -m headrace"
    assert f"\n  {name} bench latency\n" in done.stdout
    assert done.stdout.startswith(f"usage: {name} bench")
    done = run("generate", cwd="/usr")
    assert f'give one, such as `{name} generate "Once upon a time"`' in done.stderr


# ---- Prompts ----


def test_prompts_come_from_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "Once upon a time", *SHORT, "--json"]) == 0
    (expected,) = (json.loads(line)["outputs"] for line in capsys.readouterr().out.splitlines())
    done = run("generate", *SHORT, "--json", stdin="Once upon a time\n")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["outputs"] for line in done.stdout.splitlines()] == [expected]
    for words in ([], ["-"], ["--file", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once upon a time\n")))
        assert main(["generate", *words, *SHORT, "--json"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["outputs"] for line in shown] == [expected]


def test_a_file_of_prompts_from_a_pipe_has_one_prompt_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once\n\nOne day\n")))
    assert main(["generate", "--file", "-", *SHORT, "--json"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["prompt"] for line in shown] == ["Once", "One day"]


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        ([], "", "there is no prompt"),
        (["-"], "\n", "there is no prompt"),
        (["-", "--file", "-"], "a", "only once"),
        (["--file", "/no/such/file"], "a", "/no/such/file cannot be read: No such file"),
    ],
)
def test_where_there_is_no_prompt(
    words: list[str],
    stdin: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    assert main(["generate", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headrace: error: ") and said in error and error.count("\n") == 1


# ---- Refused before the work ----


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json", "/no/such/x.json"], "the result cannot be written to /no/such/x.json: there is no folder /no/such"),
        (["--json", "/"], "cannot be written to /: it is a folder"),
        (["--plot", "/no/such/x.png"], "the plot cannot be written to /no/such/x.png"),
        (["--plot", "x.bmp"], "png, svg, pdf"),
    ],
)  # fmt: skip
def test_targets_are_checked_before_a_benchmark(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr("headrace.bench.model.subject.load_subject", lambda *_, **__: loaded.append(1))
    assert main(["bench", "latency", *options]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1
    assert shown.out == "" and not loaded


def test_a_check_of_a_target_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    assert main(["bench", "latency", "-m", "nowhere", "--json", str(target)]) == 1
    assert not target.exists()


def test_a_missing_extra_is_named_before_a_benchmark() -> None:
    code = (
        "import sys; sys.modules['matplotlib.figure'] = None; from headrace.cli import main;"
        "sys.exit(main(['bench', 'latency', '-m', 'nowhere', '--plot', 'x.png']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--plot needs matplotlib" in done.stderr and "[bench]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """tale without its chat template and with weights that cannot be loaded."""
    folder = tmp_path / "my base"
    shutil.copytree(BUNDLED_FOLDER / "tale", folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        (folder / name).unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template", None)
    path.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("words", [["chat"], ["generate", "Hello", "--chat", "-m"]])
def test_a_chat_without_a_template_is_refused_before_weights_are_read(
    words: list[str], base_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr("headrace.llm.assemble", lambda *_, **__: loaded.append(1))
    assert main([*words, str(base_model)]) == 1
    error = capsys.readouterr().err
    assert "has no chat template" in error and f"`headrace generate -m '{base_model}' " in error
    assert error.count("\n") == 1 and not loaded


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LARGE = "{{ 'a' * 10 ** 9 }}"


@pytest.mark.parametrize(
    ("words", "template", "reason"),
    [
        pytest.param(["chat"], LOOP, "takes too long", marks=pytest.mark.long),
        (["chat"], LARGE, "takes too much memory"),
        (["generate", "Hello", "--chat", "-m"], LARGE, "takes too much memory"),
    ],
)
def test_a_template_that_takes_too_much_is_refused_before_weights_are_read(
    words: list[str],
    template: str,
    reason: str,
    base_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (base_model / "chat_template.jinja").write_text(template)
    loaded = []
    monkeypatch.setattr("headrace.llm.assemble", lambda *_, **__: loaded.append(1))
    assert main([*words, str(base_model)]) == 1
    error = f"headrace: error: the chat template was refused in a trial: it {reason}.\n"
    assert capsys.readouterr().err == error and not loaded


def test_a_shape_is_refused_before_its_weights_are_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr("headrace.llm.assemble", lambda *_, **__: loaded.append(1))
    assert main(["generate", "Hello", "-m", "shape:tiny"]) == 1
    assert "`headrace bench latency -m shape:tiny`" in capsys.readouterr().err and not loaded


# ---- Output that cannot be written ----


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["generate", "Once", *SHORT],
        *(pytest.param(words, marks=pytest.mark.long) for words in (["serve", "--help"], ["inspect"])),
    ],
)
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(*words, stdout=full)
    last = done.stderr.splitlines()[-1]
    assert last == "headrace: error: the output could not be written: No space left on device"
    assert done.returncode == 1 and done.stderr.count("headrace: ") == 1 and "Traceback" not in done.stderr


def test_a_closed_pipe_is_one_line() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = run("inspect", stdout=pipe)
    assert done.returncode == 1
    assert done.stderr == "headrace: error: the output could not be written: its reader closed the pipe\n"


@pytest.mark.parametrize(
    "closed", [">&-", *(pytest.param(other, marks=pytest.mark.long) for other in ("2>&-", "<&-"))]
)
def test_closed_streams_are_no_traceback(closed: str) -> None:
    words = " ".join([*RUN, "generate", "Once", *SHORT])
    done = subprocess.run(f"{words} {closed}", shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr


@pytest.mark.long
def test_no_progress_bar_where_standard_error_is_no_terminal() -> None:
    code = (
        "import headrace.llm as llm; llm._LoadingBar._PATIENCE_S = -1.0\n"
        "llm.LLM('tale', num_threads=1).generate(['Once'])\n"
        "from headrace.cli import main; main(['demo', '--requests', '2', '--num-threads', '1'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "\r" not in done.stderr and "%|" not in done.stderr


# ---- Ctrl-C ----

INTERRUPTED_BY_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("as extension modules turn it into errors of their own") from None

MODULE = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run with it ignored
sys.meta_path.insert(0, Interrupt())
from headrace.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("headrace.cli", ["--help"]),
        pytest.param("headrace.cli.engine_flags", ["generate", "Once"], marks=pytest.mark.long),
        pytest.param("headrace.llm", ["generate", "Once"], marks=pytest.mark.long),
        ("numpy", ["generate", "Once"]),
        pytest.param("headrace.bench.report", ["bench", "latency"], marks=pytest.mark.long),
        ("uvicorn", ["serve", "--port", "0"]),
        pytest.param(
            "headrace.server.batch.run", ["run-batch", "in.jsonl", "out.jsonl"], marks=pytest.mark.long
        ),
    ],
)
def test_ctrl_c_during_imports_is_one_line_and_130(module: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_BY_IMPORT, module, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stderr == "headrace: interrupted\n"


# ---- A narrow terminal ----


def test_the_list_of_commands_fits_forty_columns() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [*RUN, "chat", "--num-threads", "1"])
    try:
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        seen = _until(terminal, b"you>")
        os.write(terminal, b"/help\n")
        seen = _until(terminal, b"you>")
        os.write(terminal, b"/exit\n")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)
    shown = seen.decode(errors="replace").split("/help\r\n", 1)[1].split("\x1b")[0].splitlines()
    assert {"/reset", "/retry", "/system", "/set", "/stats", "/exit"} <= {
        line.split()[0] for line in shown if line.strip()
    }
    assert max(map(len, shown)) <= 40


@pytest.mark.parametrize("columns", ["1", "2"])
def test_help_is_shown_in_any_width(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--help"])
    assert ended.value.code == 0 and "Complete one prompt," in capsys.readouterr().out


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, pytest.param({"TERM": "dumb"}, marks=pytest.mark.long)])
def test_the_prompt_of_a_chat_has_no_colours_where_none_are_wanted(
    plain: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _chat_to(None, {"TERM": "xterm", **plain}) == b"you>"


def test_answers_that_go_to_a_file_come_without_the_prompt(tmp_path: Path) -> None:
    assert _chat_to(tmp_path / "answers", {"TERM": "xterm"}) == b"you>"
    assert len((tmp_path / "answers").read_bytes().splitlines()) == 1


def _chat_to(file: Path | None, environment: dict[str, str]) -> bytes:
    """The prompt that a terminal shows in a chat of one message; answers go to a file if one is given."""
    child, terminal = pty.fork()
    if child == 0:
        if file is not None:
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 1)
        os.execve(sys.executable, [*RUN, "chat", *SHORT], {**os.environ, **environment})
    try:
        seen = _until(terminal, b"you>")
        os.write(terminal, b"Hi\n")
        _until(terminal, b"tok/s")
        os.write(terminal, b"/exit\n")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)
    return seen.partition(b"leaves.\r\n")[2].rstrip()


def _until(terminal: int, expected: bytes, timeout_s: float = 60.0) -> bytes:
    seen = b""
    while expected not in seen:
        assert select.select([terminal], [], [], timeout_s)[0], seen
        seen += os.read(terminal, 4096)
    return seen
