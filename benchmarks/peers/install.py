"""Installs each peer into a virtual environment of its own, unless it is installed already."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterable, Sequence
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.peers.peers import Peer
from benchmarks.peers.workplace import Workplace

Say = Callable[[str], None]

INSTALL_LIMIT_S = 3600.0  # building llama.cpp takes six minutes on two cores


class InstallError(Exception):
    """A peer could not be installed; the text ends with the last lines of pip's output."""


def install(peer: Peer, workplace: Workplace, say: Say) -> bool:
    """Install `peer` unless it was installed before with the same table entry. Returns whether it was installed now.

    Raises InstallError with pip's last lines.
    """
    entry: dict[str, object] = {"packages": list(peer.packages), "wheel": peer.wheel, "base": peer.base}
    mark = workplace.installed_mark(peer.name)
    if mark.is_file() and _same(json.loads(mark.read_text()), entry):
        return False
    python = workplace.python(peer.name)
    if not python.is_file():
        say(f"{peer.name}: making a virtual environment")
        venv.create(workplace.environment(peer.name), with_pip=True, symlinks=True)
    if peer.base is not None:
        see_packages_of(peer.base, peer.name, workplace)
    log = workplace.logs / f"install-{peer.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    if peer.wheel is None:
        say(f"{peer.name}: installing {', '.join(peer.packages)}")
        _pip(python, ["install", *_source_flags(peer), *peer.packages], log)
    else:
        say(f"{peer.name}: downloading {peer.wheel}")
        file = _download(python, peer.wheel, workplace.downloads / peer.name, log)
        needed = requirements(file, peer.left_out)
        say(f"{peer.name}: installing {len(needed)} requirements and {', '.join(peer.packages)}")
        _pip(python, ["install", *_source_flags(peer), *peer.packages, *needed], log)
        _pip(python, ["install", "--no-deps", str(file)], log)
        shutil.rmtree(workplace.downloads / peer.name)
    versions = installed_versions(python)
    mark.write_text(json.dumps({**entry, "versions": versions}, indent=1))
    return True


def see_packages_of(base: str, name: str, workplace: Workplace) -> None:
    """Let an environment import, and pip find, the packages of the peer `base`; its own come first.

    Raises InstallError where that environment is not complete.
    """
    if not workplace.installed_mark(base).is_file():
        raise InstallError(f"{base} has to be installed first")
    folder = workplace.site_packages(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.pth").write_text(f"{workplace.site_packages(base)}\n", encoding="utf-8")


def installed_versions(python: Path) -> dict[str, str]:
    """Every package of an environment with its version."""
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {canonicalize_name(entry["name"]): entry["version"] for entry in json.loads(listed.stdout)}


def requirements(wheel: Path, left_out: Iterable[str]) -> list[str]:
    """A wheel's requirements on this machine, without extras and the packages `left_out`; markers are evaluated."""
    skipped = {canonicalize_name(name) for name in left_out}
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    needed = []
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) not in skipped:
            requirement.marker = None
            needed.append(str(requirement))
    return needed


def _same(found: object, entry: dict[str, object]) -> bool:
    return isinstance(found, dict) and all(found.get(key) == value for key, value in entry.items())


def _source_flags(peer: Peer) -> list[str]:
    return [word for name in peer.from_source for word in ("--no-binary", name)]


def _download(python: Path, requirement: str, folder: Path, log: Path) -> Path:
    _pip(python, ["download", "--no-deps", "--only-binary", ":all:", "-d", str(folder), requirement], log)
    return next(folder.glob("*.whl"))


def _pip(python: Path, words: Sequence[str], log: Path) -> None:
    """Run pip at low priority, because the machine may be shared."""
    nice = ["nice", "-n", "15"] if sys.platform == "linux" else []
    command = [*nice, str(python), "-m", "pip", "--disable-pip-version-check", *words]
    with log.open("a") as out:
        out.write(f"$ pip {' '.join(words)}\n")
        out.flush()
        try:
            code = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, timeout=INSTALL_LIMIT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise InstallError(
                f"pip {words[0]} took longer than {INSTALL_LIMIT_S:.0f} s; see {log}"
            ) from error
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "WARNING" not in line]
        raise InstallError("pip failed:\n" + "\n".join(lines[-12:]))
