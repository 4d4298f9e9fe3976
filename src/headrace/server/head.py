"""HEAD wherever there is GET (RFC 9110, 9.3.2): the same status and headers, and no body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware. What would go on after the headers, such as a stream of events, is told that its caller left."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_head(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def receive_until_started() -> Message:
            return {"type": "http.disconnect"} if started else await receive()

        await self._app({**scope, "method": "GET"}, receive_until_started, send_head)
