"""GET /live: the state of the engine as server-sent events, sampled once for all watchers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.engine import EngineStats
from headrace.core.snapshot import BlockMap, Lane
from headrace.core.types import Output, RequestStats
from headrace.errors import HeadraceError, Overloaded
from headrace.server.access.keys import administrator
from headrace.server.http.events import event
from headrace.server.http.json_parts import rounded
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

_KINDS = {"chatcmpl": "chat", "cmpl": "text", "resp": "response", "embd": "embedding"}
_OTHER = "request"
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193

router = APIRouter()


@router.get("/live", dependencies=[Depends(administrator)])
async def live(request: Request) -> Response:
    """Lanes, KV block maps, rates and latencies, up to five times a second, for as long as the caller listens.

    They show the requests of every caller, so a key needs admin rights for them.
    """
    return LiveStream(request.app.state.feed)


def lane_name(request_id: str, index: int = 0) -> str:
    """Such as "chat 3fa92c", and "chat 3fa92c.1" for its second completion.

    `request_id` is the engine's: the answer's id and the number of the prompt. An id may contain text that a caller
    wrote, so it is hashed: the caller who knows the answer's id can find its lane, but a lane does not reveal the id.
    """
    answer, _, prompt = request_id.rpartition("-")
    kind = _KINDS.get(answer.partition("-")[0], _OTHER)
    number = f"{_fnv(answer):08x}"[:6]
    parts = [part for part in (prompt, str(index)) if part not in ("", "0") and part.isdecimal()]
    return ".".join([f"{kind} {number}", *(part[:6] for part in parts)])


def _fnv(text: str) -> int:
    """FNV-1a of 32 bits: pages can compute it anywhere, while browsers offer SHA to secure origins only."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


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
            self._ended.append((now, _ending(output)))
        while self._ended and self._ended[0][0] < now - ENDED_S:
            self._ended.popleft()
        return {
            "now": rounded(now, 3),
            "running": stats.running,
            "waiting": stats.waiting,
            "max_num_seqs": view.snapshot.max_num_seqs,
            "max_num_batched_tokens": view.snapshot.max_num_batched_tokens,
            **_rates(before, now, stats),
            "output_tokens": stats.scheduler.output_tokens,
            "roofline": rounded(stats.roofline_fraction, 3),
            "preemptions": stats.scheduler.preemptions,
            "prefix_queries": 0 if stats.cache is None else stats.cache.queries,
            "prefix_hits": 0 if stats.cache is None else stats.cache.hits,
            "evictions": 0 if stats.cache is None else stats.cache.evictions,
            "ttft": self._tallies.recent_ttft.percentiles(),
            "itl": self._tallies.recent_itl.percentiles(),
            "lanes": [_lane(lane) for lane in view.snapshot.lanes],
            "maps": [_map(one) for one in view.snapshot.maps],
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


def _rates(before: tuple[float, EngineStats] | None, now: float, stats: EngineStats) -> dict[str, float]:
    """Output tokens and steps a second, and tokens a step, since the previous tick."""
    if before is None or now <= before[0]:
        return {"tokens_per_s": 0.0, "steps_per_s": 0.0, "tokens_per_step": 0.0}
    seconds, old, new = now - before[0], before[1].scheduler, stats.scheduler
    steps = new.steps - old.steps
    return {
        "tokens_per_s": round((new.output_tokens - old.output_tokens) / seconds, 1),
        "steps_per_s": round(steps / seconds, 1),
        "tokens_per_step": round((new.scheduled_tokens - old.scheduled_tokens) / steps, 2) if steps else 0.0,
    }


def _lane(lane: Lane) -> dict[str, Any]:
    name = lane_name(lane.request_id, lane.index)
    return {"name": name, "phase": lane.phase.value, "computed": lane.num_computed} | _progress(lane)


def _ending(output: Output) -> dict[str, Any]:
    stats, reason = output.stats, output.finish_reason
    name = lane_name(output.request_id, output.index)
    ending: dict[str, Any] = {"name": name, "reason": None if reason is None else reason.value}
    if stats is not None:
        ending |= {"finished": rounded(stats.finished_s, 3)} | _progress(stats)
    return ending


def _progress(one: Lane | RequestStats) -> dict[str, Any]:
    drafts = {"drafted": one.num_drafted, "accepted": one.num_accepted} if one.num_drafted else {}
    return drafts | {
        "arrival": rounded(one.arrival_s, 3),
        "scheduled": rounded(one.first_scheduled_s, 3),
        "first": rounded(one.first_token_s, 3),
        "prompt": one.num_prompt,
        "cached": one.num_cached,
        "output": one.num_output,
        "preemptions": one.num_preemptions,
    }


def _map(one: BlockMap) -> dict[str, Any]:
    return {
        "name": one.name,
        "blocks": one.num_blocks,
        "block_size": one.block_size,
        "per_cell": one.blocks_per_cell,
        "held": one.held,
        "findable": one.findable,
        "runs": one.runs,
    }
