"""The comparison's working folder, which git ignores."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository: the working directory of drivers, which import benchmarks.peers."""

DEFAULT = Path(os.environ.get("HEADRACE_PEERS_WORK") or Path(__file__).resolve().parent / "work")
"""Checkouts share their installs where HEADRACE_PEERS_WORK names one folder for all."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """The folder of virtual environments, models and results."""

    folder: Path

    def environment(self, name: str) -> Path:
        """The virtual environment of a peer."""
        return self.folder / "environments" / name

    def python(self, name: str) -> Path:
        """The interpreter of a peer's environment; it may not exist."""
        return self.environment(name) / "bin" / "python"

    def installed_mark(self, name: str) -> Path:
        """A file that lists what was installed; written last, so that an incomplete install is repeated."""
        return self.environment(name) / "installed.json"

    def model(self, name: str) -> Path:
        """The Hugging Face folder of a model."""
        return self.folder / "models" / name

    def gguf(self, name: str, quantization: str) -> Path:
        """A model's GGUF file; `quantization` is BF16, F16, Q8_0, Q4_0 or Q4_K_M."""
        return self.folder / "models" / f"{name}-{quantization}.gguf"

    def onnx(self, name: str, precision: str) -> Path:
        """A model's folder for ONNX Runtime GenAI; `precision` is int8 or int4."""
        return self.folder / "models" / f"{name}-onnx-{precision}"

    def site_packages(self, name: str) -> Path:
        """The packages folder of an environment."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.environment(name) / "lib" / version / "site-packages"

    @property
    def downloads(self) -> Path:
        """Wheels that are inspected before they are installed."""
        return self.folder / "downloads"

    @property
    def runs(self) -> Path:
        """Results, one JSON file a run."""
        return self.folder / "runs"

    @property
    def logs(self) -> Path:
        """Output of drivers and installers."""
        return self.folder / "logs"
