"""Where news comes from, piece by piece: told of by a call, and then taken without waiting.

What a step of the engine has to say passes from the engine's socket to a caller's socket as plain calls: stream,
generation, job and events are sources, each made of the one before it. Waiting is for their ends alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Source(Protocol[Item]):
    """For one reader, on one event loop."""

    def listen(self, call: Callable[[], None] | None) -> None:
        """Have `call` called whenever `take` has something to give or to raise; at once if that is now. None: no more
        calls. It must not raise."""
        ...

    def take(self) -> list[Item]:
        """What has come, oldest first; a long queue comes in parts. Empty where nothing new has come.

        Raises HeadraceError where the source has failed, after all that came before.
        """
        ...

    @property
    def waiting(self) -> bool:
        """There is more to take, or an error to be raised."""
        ...

    @property
    def exhausted(self) -> bool:
        """Everything was taken, and nothing will come any more."""
        ...


async def arrivals(source: Source[Item]) -> AsyncIterator[list[Item]]:
    """All that a source gives, as it comes. Raises what `take` raises."""
    while not source.exhausted:
        if items := source.take():
            yield items
            if source.waiting:
                await asyncio.sleep(0)  # what is left comes in a later turn of the event loop
        elif not source.exhausted:
            await _news(source)


async def _news(source: Source[Item]) -> None:
    came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not came.done():
            came.set_result(None)

    source.listen(tell)
    try:
        await came
    finally:
        source.listen(None)
