"""A source of items: it announces them by a callback, and a reader takes them without waiting.

The outputs of a step pass from the engine's socket to a caller's socket in plain calls: stream, generation, job and
events are sources, each made of the one before it. Only the last reader of such a chain awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Source(Protocol[Item]):
    """For one reader, on one event loop."""

    def listen(self, call: Callable[[], None] | None) -> None:
        """Call `call` whenever `take` has something to return or raise; at once if it has now. None ends the calls.
        `call` must not raise."""
        ...

    def take(self) -> list[Item]:
        """New items, oldest first, a long queue in parts. Empty if there are none.

        Raises HeadraceError if the source has failed, after all earlier items have been taken.
        """
        ...

    @property
    def waiting(self) -> bool:
        """`take` has more to return, or an error to raise."""
        ...

    @property
    def exhausted(self) -> bool:
        """Everything has been taken, and nothing more will come."""
        ...


async def arrivals(source: Source[Item]) -> AsyncIterator[list[Item]]:
    """All items of a source, as they come. Raises what `take` raises."""
    while not source.exhausted:
        if items := source.take():
            yield items
            if source.waiting:
                await asyncio.sleep(0)  # other tasks run before the rest is taken
        elif not source.exhausted:
            await _changed(source)


async def _changed(source: Source[Item]) -> None:
    came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not came.done():
            came.set_result(None)

    source.listen(wake)
    try:
        await came
    finally:
        source.listen(None)
