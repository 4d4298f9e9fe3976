"""The engine process with a planted fault: one request, once, keeps one of its blocks."""

from __future__ import annotations

import sys

from headrace.cli import main
from headrace.core.kv_manager import KVManager
from headrace.core.request import Request

WHICH = 30

_free, _calls = KVManager.free, 0


def leaky(self: KVManager, request: Request) -> None:
    global _calls
    _calls += bool(request.tables[0].live)
    if request.tables[0].live and _calls == WHICH:
        request.tables[0].live.pop()
    _free(self, request)


if __name__ == "__main__":
    KVManager.free = leaky  # type: ignore[method-assign]
    sys.exit(main(["engine-process", *sys.argv[1:]]))
