"""What every route needs, handed to the app when it is made."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fastapi import Request

from headrace.errors import UnknownModelName
from headrace.server.latencies import Latencies
from headrace.serving.client import AsyncClient
from headrace.serving.facts import ModelFacts
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Service:
    """`names` are what requests may call the model; the first is what answers call it. `started` in Unix seconds."""

    client: AsyncClient
    tokenizer: Tokenizer | None
    names: tuple[str, ...]
    facts: ModelFacts
    started: int = field(default_factory=lambda: int(time.time()))
    latencies: Latencies = field(default_factory=Latencies)

    def model(self, asked: str | None) -> str:
        """The name to answer with. Raises UnknownModelName; a request that names no model means this one."""
        if asked is None or asked == "":
            return self.names[0]
        if asked not in self.names:
            raise UnknownModelName(
                f"the model {asked[:200]!r} is not served here; there is {self.names[0]!r}"
            )
        return asked


def service_of(request: Request) -> Service:
    """The service of the app that a request came to; a FastAPI dependency."""
    service: Service = request.app.state.service
    return service
