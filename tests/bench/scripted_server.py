"""A server that answers with given bytes, for clients to find fault with."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from typing import Any

from tests.waiting import LONG_S

MODELS = {"object": "list", "data": [{"id": "scripted", "max_model_len": 512}]}

Script = Callable[[str, dict[str, Any]], bytes]
"""(path, body) -> all bytes of the answer; the connection is closed after them."""


def answer(content: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content


def events(*chunks: object, done: bool = True) -> bytes:
    """A stream; what is not bytes is written as JSON."""
    parts = [chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode() for chunk in chunks]
    if done:
        parts.append(b"[DONE]")
    return b"".join(b"data: " + part + b"\n\n" for part in parts)


def piece(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def usage(prompt: int, output: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def honest(body: dict[str, Any]) -> bytes:
    """The stream of a model that says "a" again and again; every word of the prompt is a token."""
    tokens = body["max_tokens"]
    pieces = [piece(" a") for _ in range(tokens - 1)]
    return events(*pieces, piece(" a", "length"), usage(len(body["prompt"].split()), tokens))


class ScriptedServer:
    """Listens in a thread of its own until `close`. `seen`: the bodies of POST requests."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.seen: list[dict[str, Any]] = []
        started: queue.Queue[int] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{started.get(timeout=LONG_S)}"

    def _run(self, started: queue.Queue[int]) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        started.put(server.sockets[0].getsockname()[1])
        self._loop.run_forever()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        length = next(
            (
                int(line.split(":")[1])
                for line in head.split("\r\n")
                if line.lower().startswith("content-length")
            ),
            0,
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        if path == "/v1/models":
            writer.write(answer(json.dumps(MODELS).encode()))
        else:
            self.seen.append(body)
            writer.write(self._script(path, body))
        writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG_S)
