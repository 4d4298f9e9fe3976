"""An echo engine for replies that contain what ends a user's message: a token stands for it. Run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from headrace.core.types import SeqSlice
from tests.serving.echo_engine import END, EchoExecutor
from tests.serving.tiny_engine import main

STOP, INSTEAD = 0, 5  # ids of <|begin|> and <|pad|> in the tokenizer of tale

COMMAND = (sys.executable, str(Path(__file__).resolve()))


class SayExecutor(EchoExecutor):
    """Says END for INSTEAD, and ends with STOP."""

    def next_token(self, work: SeqSlice) -> int:
        token = super().next_token(work)
        return {END: STOP, INSTEAD: END}.get(token, token)


if __name__ == "__main__":
    sys.exit(main(SayExecutor))
