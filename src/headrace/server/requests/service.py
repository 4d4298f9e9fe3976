"""What every route needs: the model's client, tokenizer and names, and the traffic rules."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from fastapi import Request

from headrace.async_llm import AsyncLLM
from headrace.core.types import Pooling
from headrace.errors import UnknownModelName
from headrace.server.access.keys import ANYONE, Caller, caller_of
from headrace.server.access.traffic import Traffic
from headrace.server.requests.bounds import HeldAnswers
from headrace.server.requests.gate import Gate
from headrace.serving.client.base import AsyncClient
from headrace.serving.engine.state import ModelFacts
from headrace.text.templates.turns import Turns
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import ReplyFormats


@dataclass(frozen=True, slots=True)
class Service:
    """`names`: the model's names in requests; answers have the first. `replies`: how the model writes reasoning and
    calls. `started` in Unix seconds. `pooling`: the default for embeddings.

    Requests go to the engine through `gate`, which applies the traffic rules. `long_texts` is the one thread that
    tokenizes long texts, `chats` the one that renders chats. `answers` is the memory of answers that
    are sent whole.
    """

    engine: AsyncLLM
    names: tuple[str, ...]
    replies: ReplyFormats = field(default_factory=ReplyFormats)
    started: int = field(default_factory=lambda: int(time.time()))
    traffic: Traffic = field(default_factory=Traffic)
    caller: Caller = ANYONE
    pooling: Pooling = Pooling.LAST
    long_texts: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "long-texts"))
    chats: Turns = field(default_factory=Turns)
    answers: HeldAnswers = field(default_factory=HeldAnswers)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate", Gate(self.client, self.traffic, self.caller))

    @property
    def client(self) -> AsyncClient:
        """The engine's client, for its state and statistics."""
        return self.engine.client

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.engine.inputs.tokenizer

    @property
    def facts(self) -> ModelFacts:
        return self.engine.facts

    def model(self, asked: str | None) -> str:
        """The model's name in the answer; the first one if the request names none. Raises UnknownModelName."""
        if asked is None or asked == "":
            return self.names[0]
        if asked not in self.names:
            raise UnknownModelName(
                f"the model {asked[:200]!r} is not served here; there is {self.names[0]!r}"
            )
        return asked


async def service_of(request: Request) -> Service:
    """The app's service for the caller of a request; a FastAPI dependency.

    It is async although it never waits: FastAPI runs plain functions in a thread, which costs more than the function.
    """
    service: Service = request.app.state.service
    return replace(service, caller=caller_of(request))
