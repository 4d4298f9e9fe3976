"""The tiny engine with a planted fault, named by the first argument. Run as a script, it is an engine process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from headrace.core.kv_manager import KVManager
from headrace.core.request import Request
from headrace.core.types import Output
from headrace.serving.engine import outbox
from headrace.serving.wire.messages import Outputs
from tests.serving.tiny_engine import main


def leak() -> None:
    """A sequence that ends keeps its last block."""

    def free(self: KVManager, request: Request) -> None:
        for table in request.tables:
            if table.live:
                table.live.pop()
        freed(self, request)

    freed = KVManager.free
    KVManager.free = free  # type: ignore[method-assign]


def mute() -> None:
    """The last output of every request is lost."""
    in_messages = outbox.in_messages

    def muted(outputs: Iterable[Output]) -> Iterator[Outputs]:
        return in_messages(output for output in outputs if output.finish_reason is None)

    outbox.in_messages = muted  # type: ignore[assignment]


FAULTS: dict[str, Callable[[], None]] = {"leak": leak, "mute": mute}


def command(fault: str) -> tuple[str, ...]:
    """Starts an engine process with this fault."""
    assert fault in FAULTS
    return sys.executable, str(Path(__file__).resolve()), fault


if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    sys.exit(main())
