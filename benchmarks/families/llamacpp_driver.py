"""llama.cpp for `benchmarks.families.driving`; runs in its environment."""

from __future__ import annotations

from benchmarks.families.driving import main
from benchmarks.peers.drivers.llamacpp import LlamaCppEngine

if __name__ == "__main__":
    main(LlamaCppEngine)
