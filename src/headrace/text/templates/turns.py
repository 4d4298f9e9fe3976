"""Rendering beside an event loop: in one thread, one call after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.errors import Overloaded

MAX_WAITING = 2048
"""Most calls that wait, as for completions."""

Result = TypeVar("Result")


class Turns:
    """Calls that render chats. All of them together take one thread, as they wait for one process."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "chat-template")
        self._waiting = 0

    async def run(self, call: Callable[[], Result]) -> Result:
        """The result of `call`, after those of earlier calls. Raises Overloaded if too many wait."""
        if self._waiting >= MAX_WAITING:
            raise Overloaded("too many conversations wait for the chat template; try again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Drop the calls that wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)
