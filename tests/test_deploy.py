"""The files in deploy/: paths exist, command lines have known flags, and the server accepts the key file."""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from headrace.server.access.key_file import read_keys
from tests.places import ROOT
from tools import reference

DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))


def accepts(words: list[str]) -> None:
    """Raises SystemExit for an unknown command or flag."""
    reference.parser().parse_args(words)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_headrace_with_flags_that_exist(name: str) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / name).read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert program == "/opt/headrace/bin/headrace"
    accepts(words)


def test_the_image_copies_what_exists_and_starts_a_server() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = [
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    sources = {
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert len(sources) >= 7
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), source
    (command,) = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    accepts(yaml.safe_load(command))


def test_compose_starts_a_server_and_mounts_what_exists() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    accepts(shlex.split(services["headrace"]["command"]))
    build = services["headrace"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    files = [volume.split(":")[0] for volume in services["proxy"]["volumes"] if volume.startswith("./")]
    assert files and all((DEPLOY / file).exists() for file in files)


def test_the_server_accepts_the_example_of_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text((DEPLOY / "keys.toml.example").read_text())
    assert [key.caller.name for key in read_keys(file)] == ["ann", "operator"]


def test_an_unknown_flag_is_noticed() -> None:
    with pytest.raises(SystemExit):
        accepts(["serve", "tale", "--api-key-fil", "x", "--no-such-flag"])
