"""The folder while it is made: a kill between any two changes of the disk loses no byte and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.errors import ConfigError, ModelError
from headrace.models.packed.folder import new_folder
from headrace.models.packed.header import HEADER_FILE
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.formats.files import Unfinished, check_absent, open_unfinished
from headrace.quantize.options import QuantizeOptions
from headrace.quantize.run import quantize
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

CHANGES = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync")
"""Of os: whatever changes a folder, or makes bytes last."""


ROOT = Path(__file__).resolve().parents[3]
KILLED = 9
"""The exit status of a command that was."""


class Killed(BaseException):
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def killed_everywhere(
    make: Callable[[Path], object], killed: Callable[[Path, int], bool], home: Path, step: int
) -> int:
    """`make` a folder with a kill before the first change of the disk, then with one before a later one, and so on;
    each time make it again to its end. Gives the number of changes."""
    make(home / "out")
    whole = contents(home / "out")
    shutil.rmtree(home / "out")
    for stop in range(1, 10_000, step):
        if not killed(home / "out", stop):
            assert contents(home / "out") == whole
            return stop
        if (home / "out").exists():  # only the rest was to be removed
            assert contents(home / "out") == whole
            with pytest.raises(ConfigError, match="is there already"):
                check_absent(home / "out")
        else:
            make(home / "out")
            assert contents(home / "out") == whole, stop
        assert [path.name for path in home.iterdir()] == ["out"], stop
        shutil.rmtree(home / "out")
    raise AssertionError


def counted(stop: int, end: Callable[[], object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes of functions some that call `end` before so many calls of all together."""
    count = 0

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count >= stop:
                end()
            return real(*given, **named)

        return call

    return wrapped


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 1, "vocab_size": 512})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, folder)
    return str(folder)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_any_change_of_the_disk_loses_nothing(step: int, tiny: str, tmp_path: Path) -> None:
    source = resolve_model(tiny)
    spec = stored_spec(source)

    def make(out: Path) -> None:
        quantize(source, spec, QuantizeOptions("rtn", group=32), [], out, num_threads=1)

    def end() -> None:
        raise Killed

    def killed(out: Path, stop: int) -> bool:
        wrapped = counted(stop, end)
        with pytest.MonkeyPatch.context() as patch:
            for name in CHANGES:
                patch.setattr(os, name, wrapped(getattr(os, name)))
            try:
                make(out)
            except Killed:
                return True
        return False

    assert killed_everywhere(make, killed, tmp_path, step) > 20


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("format", "more", "step"),
    [
        ("headrace", [], 5),
        ("headrace", ["--bits", "3", "--max-kl", "0.4", "--eval-tokens", "64"], 17),
        ("gguf:Q4_0", [], 5),
    ],
)
def test_nor_does_a_kill_of_the_command(format: str, more: list[str], step: int, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "home").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | {"num_hidden_layers": 1})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, tmp_path / "model")
    words = ["quantize", str(tmp_path / "model"), "--samples", "2", "--length", "16", "--num-threads", "1"]
    words += ["--format", format, *more, *([] if format.startswith("gguf") else ["--group-size", "32"])]

    def make(out: Path) -> None:
        assert main([*words, "-o", str(out)]) == 0

    def killed(out: Path, stop: int) -> bool:
        command = [
            sys.executable,
            "-m",
            "tests.quantize.formats.test_files",
            str(stop),
            *words,
            "-o",
            str(out),
        ]
        run = subprocess.run(command, cwd=ROOT, check=False)
        assert run.returncode in (0, KILLED)
        return run.returncode == KILLED

    assert killed_everywhere(make, killed, tmp_path / "home", step) > 20


def test_whole_codes_are_packed_without_being_made_again(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed while it packs has lost that alone."""
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    write(model, CONFIGS["mistral"] | {"num_hidden_layers": 1})
    words = ["quantize", str(model), "-o", str(tmp_path / "out"), "--format", "headrace", "--method", "rtn"]
    words += ["--samples", "0", "--group-size", "32", "--num-threads", "1"]

    def stop(*given: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("headrace.build.pack", stop)
        with pytest.raises(Killed):
            main(words)
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        patch.setattr("headrace.quantize.run.read_some", stop)
        assert main(words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_what_another_command_left_is_not_used(tmp_path: Path) -> None:
    with open_unfinished(tmp_path / "out") as place:
        place.start("one", 0)
        (place.files / "a").write_text("of one")
        place.state["layers"] = {"1": {}}
        place.save()
        with pytest.raises(ConfigError, match="by another process"), open_unfinished(tmp_path / "out"):
            pass
    with open_unfinished(tmp_path / "out") as place:
        place.start("one", 0)
        assert place.state["layers"] and (place.files / "a").exists()
    with open_unfinished(tmp_path / "out") as place:
        place.start("two", 0)
        assert "layers" not in place.state and not list(place.files.iterdir())
        place.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_who_comes_too_late_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the first file of a run, which measures first, nor where that ends in between."""
    with open_unfinished(tmp_path / "out") as place:
        with pytest.raises(ConfigError, match="by another process"), open_unfinished(tmp_path / "out"):
            pass
        place.start("one", 0)
    shutil.rmtree(place.path)

    def ends_meanwhile(opened: int) -> bool:
        monkeypatch.undo()
        place.path.rmdir()
        return True

    monkeypatch.setattr("headrace.quantize.formats.files._lock", ends_meanwhile)
    with open_unfinished(tmp_path / "out") as place:
        place.start("two", 0)
        place.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_no_folder_is_in_the_way(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for path in (tmp_path / "pipe", tmp_path / "link", Path(os.devnull)):
        with pytest.raises(ConfigError, match="is there already"):
            check_absent(path)
    (tmp_path / "empty").mkdir()
    check_absent(tmp_path / "empty")
    check_absent(tmp_path / "new")


def test_names_that_no_folder_can_have(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place: AbstractContextManager[object]
    for name, why in (
        ("x" * 256, "File name too long"),
        ("x" * 250, "File name too long"),  # not itself: the name that it has until then
        ("file/out", "file is not a folder"),
        ("file/out/deeper", "file is not a folder"),
    ):
        with pytest.raises(ConfigError, match=f"cannot be made: .*{why}"):
            check_absent(tmp_path / name)
        for place in (open_unfinished(tmp_path / name), new_folder(tmp_path / name, 0)):
            with pytest.raises(ConfigError, match=f"cannot be made: .*{why}"), place:
                pass
    for path, why in ((Path("/proc"), "is there already"), (Path("."), "no name"), (Path("/"), "no name")):
        for place in (open_unfinished(path), new_folder(path, 0)):
            with pytest.raises(ConfigError, match=why), place:
                pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_mount_point_is_not_renamed_onto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == folder)
    with pytest.raises(ConfigError, match="is a mount point"):
        check_absent(folder)


@pytest.mark.parametrize("format", ["compressed-tensors", "headrace", "gguf:Q4_0"])
def test_a_name_that_is_taken_meanwhile_costs_no_work(
    format: str,
    tiny: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The finished files stay until the command is given again and the name is free."""
    out, other = tmp_path / "out", tmp_path / "out" / "other"
    words = ["quantize", "-o", str(out), "--format", format, "--method", "rtn", "--samples", "0"]
    words += [
        "--num-threads",
        "1",
        *(["tale"] if format.startswith("gguf") else [tiny, "--group-size", "32"]),
    ]
    commit = Unfinished.commit

    def too_late(place: Unfinished, made: Path | None = None) -> None:
        out.mkdir()
        other.touch()
        commit(place, made)

    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "commit", too_late)
        assert main(words) == 1
    assert f"what was finished is {tmp_path}/.out.unfinished/" in capsys.readouterr().err
    kept = tmp_path / ".out.unfinished" / "files"
    files = contents(kept)
    assert main(words) == 1
    assert "is there already" in capsys.readouterr().err
    assert contents(kept) == files and contents(out) == {"other": b""}
    shutil.rmtree(out)
    monkeypatch.setattr("headrace.models.loader.read_some", None)  # nothing is made again
    monkeypatch.setattr("headrace.quantize.run.read_some", None)
    monkeypatch.setattr("headrace.quantize.gguf.run.read_some", None)
    assert main(words) == 0
    assert format == "headrace" or contents(out) == files
    assert (out / HEADER_FILE).is_file() == (format == "headrace")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_was_half_removed_is_made_again(tmp_path: Path) -> None:
    """A kill while files are removed that were packed, and then the packed folder is moved away."""
    with open_unfinished(tmp_path / "out") as place:
        place.start("one", 0)
        for name in ("a", "b"):
            (place.files / name).touch()
        place.packed.mkdir()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(shutil, "rmtree", lambda path: (path / "a").unlink() or kill())
            place.commit(place.packed)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with open_unfinished(tmp_path / "out") as place:
        place.start("one", 0)
        assert not list(place.files.iterdir())


def kill() -> None:
    raise Killed


def test_nothing_stays_where_nothing_was_begun(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no"), open_unfinished(tmp_path / "out"):
        raise ConfigError("no")
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":  # a command that ends at once before a change of the disk
    wrap = counted(int(sys.argv[1]), lambda: os._exit(KILLED))
    for change in CHANGES:
        setattr(os, change, wrap(getattr(os, change)))
    sys.exit(main(sys.argv[2:]))


@pytest.mark.parametrize("copies", [1, 2])
def test_what_is_packed_as_well_needs_room_before_the_work(
    copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: used._replace(free=3 << 20))
    with open_unfinished(tmp_path / "out", copies) as place:
        if copies == 1:
            place.start("key", 3 << 19)
            place.discard()
        else:
            with pytest.raises(
                ModelError, match=r" needs [\d,]{9} bytes, but its disk has 3,145,728 bytes free"
            ):
                place.start("key", 3 << 19)
    assert not [*tmp_path.iterdir()]
