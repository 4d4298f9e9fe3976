"""Where everything that the comparison makes lies: one folder, which git ignores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository; drivers run from here, so that they are found as benchmarks.peers.drivers."""

DEFAULT = Path(__file__).resolve().parent / "work"


@dataclass(frozen=True, slots=True)
class Workplace:
    """The folder of virtual environments, models and results."""

    folder: Path

    def environment(self, name: str) -> Path:
        """The virtual environment of a peer."""
        return self.folder / "environments" / name

    def python(self, name: str) -> Path:
        """The interpreter of a peer's environment, whether it is there or not."""
        return self.environment(name) / "bin" / "python"

    def installed_mark(self, name: str) -> Path:
        """A file that holds what was installed; written last, so that a broken install is done again."""
        return self.environment(name) / "installed.json"

    def model(self, name: str) -> Path:
        """The Hugging Face folder of a model."""
        return self.folder / "models" / name

    def gguf(self, name: str, quantization: str) -> Path:
        """A model's GGUF file; `quantization` is Q8_0 or Q4_0."""
        return self.folder / "models" / f"{name}-{quantization}.gguf"

    @property
    def downloads(self) -> Path:
        """Wheels that are looked into before they are installed."""
        return self.folder / "downloads"

    @property
    def runs(self) -> Path:
        """Results, one JSON file a run."""
        return self.folder / "runs"

    @property
    def logs(self) -> Path:
        """What drivers and installers printed."""
        return self.folder / "logs"
