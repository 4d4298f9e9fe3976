"""Paths of files that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "src" / "headrace" / "bundled"
TALE = BUNDLED / "tale"
