"""Builds the web application from routes, middleware and error handlers."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request
from starlette.responses import Response

from headrace import __version__
from headrace.async_llm import AsyncLLM
from headrace.core.types import Pooling
from headrace.errors import ConfigError
from headrace.server.access.hosts import ANY, HostCheck, OriginCheck
from headrace.server.access.key_check import KeyCheck
from headrace.server.access.traffic import Traffic
from headrace.server.anthropic import route as messages_api
from headrace.server.http import errors
from headrace.server.http.body import MAX_BODY_BYTES, BodyLimit
from headrace.server.http.headers import HeadAsGet
from headrace.server.http.pace import CallerLeft, Pace
from headrace.server.observability import monitor
from headrace.server.observability.monitor import Monitor
from headrace.server.observability.observer import Observer, Sink
from headrace.server.ollama import about as ollama_about
from headrace.server.ollama import route as ollama
from headrace.server.openai import chat, completions, embeddings, models
from headrace.server.openai.responses import route as responses
from headrace.server.openai.responses.store import DEFAULT_BYTES, ResponseStore
from headrace.server.requests.service import Service
from headrace.server.ui import live, openapi, page, plan
from headrace.server.ui.live import Feed
from headrace.server.ui.plan import Plans
from headrace.text.tools.formats import ReplyFormats

_CLIENT_CLOSED_REQUEST = 499


def create_app(
    engine: AsyncLLM,
    model_names: Sequence[str],
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    traffic: Traffic | None = None,
    allowed_hosts: Sequence[str] = (ANY,),
    allowed_origins: Sequence[str] = (),
    replies: ReplyFormats | None = None,
    sinks: Sequence[Sink] = (),
    pooling: Pooling = Pooling.LAST,
    response_store_bytes: int = DEFAULT_BYTES,
) -> FastAPI:
    """An app that serves one model under all of `model_names`. The engine has been started, and is
    the caller's to close.

    replies: how the model writes reasoning and calls; None to detect it from the chat template.

    response_store_bytes: memory for stored responses, 0 to store none.

    sinks: called with each request that has ended.

    Raises ConfigError without a name.
    """
    if not model_names or not all(model_names):
        raise ConfigError("a served model needs a name")
    app = FastAPI(title="Headrace", version=__version__, docs_url=None, redoc_url=None)
    traffic = traffic or Traffic()
    app.state.service = service = Service(
        engine,
        tuple(model_names),
        replies or ReplyFormats.of(engine.inputs.tokenizer),
        traffic=traffic,
        pooling=pooling,
    )
    app.state.responses = stored = ResponseStore(response_store_bytes)
    traffic.on_reload(stored.keep)
    app.state.monitor = counted = Monitor(service, sinks)
    app.state.feed = Feed(service, counted.tallies)
    app.state.plans = Plans()
    # From the inside to the outside: the middleware that is added last sees a request first.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    app.add_middleware(KeyCheck, traffic=traffic)
    app.add_middleware(OriginCheck, allowed=tuple(allowed_origins))
    app.add_middleware(HostCheck, allowed=tuple(allowed_hosts))
    app.add_middleware(Pace)
    app.add_middleware(Observer, tallies=counted.tallies, sinks=counted.sinks)
    errors.install(app)
    app.add_exception_handler(CallerLeft, _caller_left)
    for routes in (
        completions,
        chat,
        responses,
        messages_api,
        ollama,
        ollama_about,
        embeddings,
        models,
        monitor,
        live,
        plan,
        page,
    ):
        app.include_router(routes.router)
    openapi.install(app)
    return app


async def _caller_left(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)
