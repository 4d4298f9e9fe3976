"""Questions to the engine process that are answered between two steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.errors import EngineDead, HeadraceError

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class Questions(Generic[Key, Answer]):
    """Those that wait for an answer of one kind, by key. On one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Key, asyncio.Future[Answer]] = {}

    async def ask(self, key: Key, send: Callable[[], None]) -> Answer:
        """Call `send`, then wait. Raises what `refuse` is given, and EngineDead."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        try:
            send()
            return await answer
        finally:
            self._waiting.pop(key, None)

    def answer(self, key: Key, answer: Answer) -> None:
        """Ignored where nobody waits any more."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def refuse(self, key: Key, error: HeadraceError) -> None:
        """The answer is an error. Ignored where nobody waits any more."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # looked at: whoever was to wait for it may have gone

    def fail(self, error: str) -> None:
        """The engine is dead: no answer will come to any of them."""
        for key in self._waiting:
            self.refuse(key, EngineDead(error))


class NumberedQuestions(Questions[int, Answer]):
    """Questions that are told apart by numbers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    async def ask_next(self, send: Callable[[int], None]) -> Answer:
        """As `ask`, with the next number."""
        number = next(self._numbers)
        return await self.ask(number, lambda: send(number))
