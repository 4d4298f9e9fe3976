"""GET /live: the state of the engine as server-sent events, sampled once for all watchers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.engine import EngineStats
from headrace.core.snapshot_data import ending_data, snapshot_data
from headrace.errors import HeadraceError, Overloaded
from headrace.server.access.keys import administrator
from headrace.server.http.events import event
from headrace.server.http.pace import CallerLeft, while_connected
from headrace.server.requests.service import Service
from headrace.server.requests.tallies import Tallies
from headrace.serving.engine.state import View

INTERVAL_S = 0.2
PATIENCE_S = 2.0
"""Time for the engine's reply, which it sends between two steps; after it the tick says that the engine is silent."""

MAX_WATCHERS = 128

ENDED_S = 3.0
"""Time for which each tick repeats an ending, for watchers who miss a tick or come late."""

MAX_ENDED = 96

router = APIRouter()


@router.get("/live", dependencies=[Depends(administrator)])
async def live(request: Request) -> Response:
    """Lanes, KV block maps, rates and latencies, up to five times a second, for as long as the caller listens.

    They show the requests of every caller, so a key needs admin rights for them.
    """
    return LiveStream(request.app.state.feed)


class Feed:
    """One poller, which runs while there are watchers. All watchers get the same bytes; slow ones miss some ticks.

    A tick contains counts, times and made-up names: no prompt, no output, and no id of a request.
    """

    def __init__(
        self,
        service: Service,
        tallies: Tallies,
        *,
        interval_s: float = INTERVAL_S,
        max_watchers: int = MAX_WATCHERS,
    ) -> None:
        self._service = service
        self._tallies = tallies
        self._interval_s = interval_s
        self._max_watchers = max_watchers
        self._watchers = 0
        self._closed = False
        self._event = b""
        self._tick = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._before: tuple[float, EngineStats] | None = None
        self._ended: deque[tuple[float, dict[str, Any]]] = deque(maxlen=MAX_ENDED)

    def join(self) -> None:
        """One watcher more, which must `leave`. Raises Overloaded if there are too many."""
        if self._watchers >= self._max_watchers:
            raise Overloaded(f"{self._watchers} pages watch this engine already: try again later")
        self._watchers += 1
        if self._poller is None and not self._closed:
            self._before = None
            self._poller = asyncio.create_task(self._poll(), name="live-feed")

    async def next_event(self) -> bytes | None:
        """The next tick; None when the feed is closed."""
        if not self._closed:
            await self._tick.wait()
        return None if self._closed else self._event

    def leave(self) -> None:
        """One watcher less."""
        self._watchers -= 1
        if not self._watchers and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def close(self) -> None:
        """End every watcher's stream, before the server ends."""
        self._closed = True
        self._announce()

    async def _poll(self) -> None:
        while True:
            self._event = event(await self._content())
            self._announce()
            await asyncio.sleep(self._interval_s)

    def _announce(self) -> None:
        """Wake all watchers that wait now. Those that are still sending the last event see the next one."""
        self._tick.set()
        self._tick = asyncio.Event()

    async def _content(self) -> dict[str, Any]:
        state = self._service.client.state.value
        try:
            async with asyncio.timeout(PATIENCE_S):  # wait_for may lose a cancellation in Python 3.11
                view = await self._service.client.view()
        except TimeoutError:
            return {"state": state, "silent": True}
        except HeadraceError:
            self._before = None
            return {"state": self._service.client.state.value}
        return {"state": state} | self._described(view)

    def _described(self, view: View) -> dict[str, Any]:
        now, stats = view.snapshot.now, view.snapshot.stats
        before, self._before = self._before, (now, stats)
        for output in view.ended:
            self._ended.append((now, ending_data(output)))
        while self._ended and self._ended[0][0] < now - ENDED_S:
            self._ended.popleft()
        return snapshot_data(view.snapshot, before) | {
            "ttft": self._tallies.recent_ttft.percentiles(),
            "itl": self._tallies.recent_itl.percentiles(),
            "ended": [ending for _, ending in self._ended],
        }


class LiveStream(Response):
    """Sending waits for the caller, so a slow one gets fewer events, not late ones. Raises what `Feed.join` raises."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        feed.join()
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._stream(send))
        except CallerLeft:
            return
        finally:
            self._feed.leave()

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (part := await self._feed.next_event()) is not None:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
