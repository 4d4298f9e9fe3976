"""Headrace: an inference engine for open-weight language models.

Everything public is here; `LLM` and its companions are imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from headrace.errors import (
    CheckpointError,
    ConfigError,
    DeadlineExceeded,
    DoesNotFit,
    EngineDead,
    HeadraceError,
    InvalidParams,
    MissingDependency,
    ModelError,
    ModelNotFound,
    NotPermitted,
    Overloaded,
    PreviousResponseNotFound,
    PromptTooLong,
    RateLimited,
    RequestError,
    ResponseNotFound,
    TokenizerError,
    UnknownModelName,
    UnsupportedModel,
)

TYPE_CHECKING = (
    False  # type checkers know the name; to import it from typing takes longer than all the rest here
)
if TYPE_CHECKING:
    from headrace.async_llm import AsyncLLM
    from headrace.core.engine import EngineStats
    from headrace.core.grammar import Grammar
    from headrace.core.params import RequestOutputKind, SamplingParams
    from headrace.llm import LLM
    from headrace.serving.metrics import MetricSample
    from headrace.serving.requests.outputs import (
        CompletionOutput,
        EmbeddingRequestOutput,
        RequestMetrics,
        RequestOutput,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "DeadlineExceeded",
    "DoesNotFit",
    "EmbeddingRequestOutput",
    "EngineDead",
    "EngineStats",
    "Grammar",
    "HeadraceError",
    "InvalidParams",
    "MetricSample",
    "MissingDependency",
    "ModelError",
    "ModelNotFound",
    "NotPermitted",
    "Overloaded",
    "PreviousResponseNotFound",
    "PromptTooLong",
    "RateLimited",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "ResponseNotFound",
    "SamplingParams",
    "TokenizerError",
    "UnknownModelName",
    "UnsupportedModel",
    "__version__",
]

_HOMES = {
    "AsyncLLM": "headrace.async_llm",
    "CompletionOutput": "headrace.serving.requests.outputs",
    "EmbeddingRequestOutput": "headrace.serving.requests.outputs",
    "EngineStats": "headrace.core.engine",
    "Grammar": "headrace.core.grammar",
    "LLM": "headrace.llm",
    "MetricSample": "headrace.serving.metrics",
    "RequestMetrics": "headrace.serving.requests.outputs",
    "RequestOutput": "headrace.serving.requests.outputs",
    "RequestOutputKind": "headrace.core.params",
    "SamplingParams": "headrace.core.params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if name != "AsyncLLM" or error.name != "msgspec":
            raise
        command = import_module("headrace.extras").install_command("server")
        raise MissingDependency("AsyncLLM needs the package msgspec", command) from error
    globals()[name] = value  # the next access does not come through here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
