"""Requirements of a wheel as pip would see them, without those left out. No network: nothing is installed here."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers_command
from benchmarks.peers import install as installing
from benchmarks.peers.install import InstallError, install, requirements
from benchmarks.peers.peers import BY_NAME, GGUF_WRITER, Peer
from benchmarks.peers.workplace import Workplace

METADATA = """Metadata-Version: 2.1
Name: engine
Version: 1
Requires-Dist: torch==2.13.0
Requires-Dist: Torch_Audio
Requires-Dist: numpy>=2
Requires-Dist: winlib; sys_platform == "win32"
Requires-Dist: pandas; extra == "bench"
Requires-Dist: fastapi[standard]<1; python_version > "3"
"""


def test_requirements_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "engine-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine-1.dist-info/METADATA", METADATA)
    assert requirements(wheel, ("torch", "torch-audio")) == ["numpy>=2", "fastapi[standard]<1"]


def test_installed_packages_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(installing, "_pip", lambda python, words, log: calls.append(words))
    monkeypatch.setattr(installing, "installed_versions", lambda python: {"openvino-genai": "1"})
    monkeypatch.setattr(
        installing.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True)
    )
    workplace, peer, said = Workplace(tmp_path), BY_NAME["openvino"], []
    assert install(peer, workplace, said.append) is True
    assert install(peer, workplace, said.append) is False
    assert [words[0] for words in calls] == ["install"]
    mark = workplace.installed_mark("openvino")
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "packages": ["openvino-genai==1"]}))
    assert install(peer, workplace, said.append) is True  # another version is asked for


def test_a_failed_install_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InstallError("pip failed")

    monkeypatch.setattr(installing, "_pip", fail)
    monkeypatch.setattr(
        installing.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True)
    )
    with pytest.raises(InstallError, match="pip failed"):
        install(BY_NAME["openvino"], Workplace(tmp_path), lambda text: None)
    assert not Workplace(tmp_path).installed_mark("openvino").exists()


def test_a_layered_environment_needs_its_base_and_sees_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(installing, "_pip", lambda python, words, log: calls.append(words))
    monkeypatch.setattr(installing, "installed_versions", lambda python: {})
    monkeypatch.setattr(
        installing.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True)
    )
    workplace, peer = Workplace(tmp_path), BY_NAME["vllm-zentorch"]
    with pytest.raises(InstallError, match="vllm has to be installed first"):
        install(peer, workplace, lambda text: None)
    assert calls == []
    workplace.environment("vllm").mkdir(parents=True)
    workplace.installed_mark("vllm").write_text("{}")
    assert install(peer, workplace, lambda text: None) is True
    link = workplace.site_packages("vllm-zentorch") / "base.pth"
    assert link.read_text().strip() == str(workplace.site_packages("vllm"))
    assert calls == [["install", "zentorch==2.13.0.2"]]


@pytest.mark.parametrize(
    ("failing", "status"),
    [({"llamacpp"}, 0), ({"llamacpp", "openvino"}, 1), ({GGUF_WRITER.name}, 0)],
)
def test_setup_fails_when_no_engine_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: set[str], status: int
) -> None:
    tried = []

    def attempt(peer: Peer, workplace: Workplace, say: Callable[[str], None]) -> bool:
        tried.append(peer.name)
        if peer.name in failing:
            raise InstallError("pip failed")
        return True

    monkeypatch.setattr(peers_command, "install", attempt)
    command = ["setup", "--only", "llamacpp", "openvino", "--work", str(tmp_path)]
    assert peers_command.main(command) == status
    assert set(tried) == {GGUF_WRITER.name, "llamacpp", "openvino"}
