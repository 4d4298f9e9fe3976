"""GET /live: the engine as it runs, as server-sent events."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.disconnect import CallerLeft, while_connected
from headrace.server.feed import Feed, Watch
from headrace.server.usage import administrator

router = APIRouter()


@router.get("/live", dependencies=[Depends(administrator)])
async def live(request: Request) -> Response:
    """Lanes, KV block maps, rates and latencies, up to five times a second, for as long as the caller listens.

    They tell of every caller, so a key needs admin rights for them.
    """
    feed: Feed = request.app.state.feed
    return LiveStream(feed.watch())


class LiveStream(Response):
    """Passes events on as they come. Sending waits for the caller, so a slow one gets fewer events, not late ones."""

    media_type = "text/event-stream"

    def __init__(self, watch: Watch) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._stream(send))
        except CallerLeft:
            return
        finally:
            self._watch.close()

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._watch:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
