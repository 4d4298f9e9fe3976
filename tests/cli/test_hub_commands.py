"""`headrace pull`, `list` and `rm` against a hub on this machine."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from tests.models.hub import server
from tests.models.hub.conftest import BIG, gguf_repository, safetensors_repository
from tests.models.hub.server import Hub
from tests.places import TALE

RUN = [sys.executable, "-m", "headrace"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with server.running() as started:
        tale = {file.name: file.read_bytes() for file in TALE.iterdir() if file.is_file()}
        started.repositories = {
            "org/gguf": gguf_repository(),
            "org/plain": safetensors_repository(),
            "org/tale": server.Repository(tale, commit="c" * 40),
        }
        server.environment(monkeypatch, started, str(tmp_path / "cache"))
        yield started


def on_terminal(*words: str, answer: str = "") -> tuple[int, str]:
    """Exit status, and what a command prints on a terminal."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    child = subprocess.Popen([*RUN, *words], stdin=slave, stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    if answer:
        os.write(master, answer.encode())
    said = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the terminal was closed on the other side
            break
        if not part:
            break
        said += part
    os.close(master)
    return child.wait(timeout=60), said.decode()


def test_pull_says_what_came_and_what_to_do_next(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "org/gguf:Q8_0"]) == 0
    first = capsys.readouterr().out.splitlines()
    assert first[0] == "org/gguf:Q8_0: 1 file, 1.22 MiB, 1.22 MiB of them downloaded"
    assert first[1].endswith(f"m-Q8_0.gguf (commit {'a' * 40})")
    assert first[2].endswith("chat org/gguf:Q8_0`")
    assert main(["pull", "org/gguf:Q8_0"]) == 0
    assert "all of them there already" in capsys.readouterr().out
    folder = tmp_path / "my models"
    assert main(["pull", "org/gguf:Q8_0", "--revision", "main", "--download-dir", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()[2]
    assert said.endswith(f"chat org/gguf:Q8_0 --revision main --download-dir '{folder}'`")


def test_pull_shows_progress_on_a_terminal(hub: Hub) -> None:
    status, said = on_terminal("pull", "org/plain")
    assert status == 0
    assert "pulling org/plain: 100%" in said and "MB" in said
    assert "Fetching" not in said and "Warning" not in said  # nothing of the library's own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull", "tale"], "'tale' is not a model of the hub"),
        (["pull", "./folder/x"], "is not a model of the hub"),
        (["pull", "org/none"], "hub model org/none is not there"),
        (["pull", "org/gguf:Q9"], "has no Q9; it has F16, Q4_K_M, Q8_0"),
        (["rm", "tale", "--yes"], "tale is part of the package"),
        (["rm", "org/none", "--yes"], "holds no model org/none"),
    ],
)
def test_refusals_are_one_sentence(
    words: list[str], said: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("headrace: error: ") and said in shown.err and shown.err.count("\n") == 1


def test_list(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    empty = capsys.readouterr().out
    assert "tale-draft" in empty and "org/" not in empty
    for name in ("org/gguf:Q8_0", "org/plain"):
        assert main(["pull", name]) == 0
    capsys.readouterr()
    assert main(["list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(rows) == ["model", "org/gguf:Q8_0", "org/plain", "tale", "tale-draft"]
    assert "aaaaaaa" in rows["org/gguf:Q8_0"] and "GGUF Q8_0" in rows["org/gguf:Q8_0"]
    assert main(["list", "--json"]) == 0
    found = {model["id"]: model for model in json.loads(capsys.readouterr().out)}
    gguf = found["org/gguf:Q8_0"]
    assert (gguf["kind"], gguf["type"], gguf["bytes"]) == ("GGUF", "Q8_0", len(b"m-Q8_0.gguf" + BIG))
    assert Path(gguf["path"]).is_file() and gguf["refs"] == ["main"] and gguf["last_used"].endswith("+00:00")
    assert found["tale"]["origin"] == "package" and found["tale"]["bytes"] > 100_000


def test_rm_asks(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "org/gguf:Q8_0"]) == 0
    capsys.readouterr()
    assert main(["rm", "org/gguf:Q8_0"]) == 1  # standard input is not a terminal
    assert "only after a question, or with --yes" in capsys.readouterr().err
    status, said = on_terminal("rm", "org/gguf", answer="n\n")
    assert status == 1 and "Delete org/gguf (1.22 MiB)? [y/N]" in said and "nothing was deleted" in said
    status, said = on_terminal("rm", "org/gguf", answer="y\n")
    assert status == 0 and "deleted org/gguf: 1.22 MiB are free again" in said
    assert main(["pull", "org/gguf:Q8_0"]) == 0
    assert main(["rm", "gguf:Q8_0", "--yes"]) == 0
    assert "are free again" in capsys.readouterr().out


def test_an_unfinished_download_is_listed(
    hub: Hub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["pull", "org/plain"]) == 0
    (tmp_path / "cache" / "models--org--plain" / "blobs" / "abc.incomplete").write_bytes(b"x" * 2048)
    capsys.readouterr()
    assert main(["list"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("org/plain: 2.00 KiB of an unfinished download; ")
    assert last.endswith(" rm org/plain` deletes it") and " pull org/plain` completes it, " in last
    (tmp_path / "my cache" / "models--bad").mkdir(parents=True)
    assert main(["list", "--download-dir", str(tmp_path / "my cache")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]  # no owner, so pull would refuse it
    assert "pull" not in last and last.endswith(
        f" rm bad --download-dir '{tmp_path / 'my cache'}'` deletes it"
    )


@pytest.mark.long
def test_a_model_of_the_hub_is_run(hub: Hub) -> None:
    """The same bytes as the bundled model, by reference: without a download before, then from the cache without a
    hub."""
    words = [
        "generate",
        "-m",
        "org/tale@main",
        "Once",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        "--num-threads",
        "1",
    ]
    bundled = [*words[:2], "tale", *words[3:]]
    expected = subprocess.run([*RUN, *bundled], capture_output=True, text=True, check=True).stdout
    first = subprocess.run([*RUN, *words], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    again = subprocess.run([*RUN, *words], capture_output=True, text=True, check=False, env=offline)
    assert first.stdout == again.stdout == expected
