"""The exception tree. Every error maps to one HTTP status and reads as one clear sentence.

HeadraceError                     500
|- RequestError                   400   the request is at fault; only it fails
|  |- InvalidParams               400   a sampling parameter or field is out of its range
|  |- PromptTooLong               400   the prompt does not fit the context or the KV cache
|  |- UnknownModelName            404   the request names a model that is not served
|  |- ResponseNotFound            404   the request names a stored response that is not there
|  |- PreviousResponseNotFound    400   the request continues a stored response that is not there
|  |- NotPermitted                403   the caller's key does not allow what it asks for
|  |- RateLimited                 429   the caller's key has used up its share of this minute
|  |- Overloaded                  429   the queue is full; try again later
|  `- DeadlineExceeded            504   the request was not scheduled, or did not end, in the time it had
|- ConfigError                    400   an engine option or a combination of options is wrong
|  `- DoesNotFit                  400   the model and its options need more memory than there is
|- ModelError                     400   the model cannot be loaded
|  |- ModelNotFound               404   no such folder, file, bundled name or hub id
|  |- UnsupportedModel            400   a family or feature that is not implemented
|  |- CheckpointError             400   weights are truncated, inconsistent or missing
|  `- TokenizerError              400   tokenizer or chat template missing or unusable
|- EngineDead                     503   the engine process ended; nothing of the request is known
`- MissingDependency              501   an optional package is needed; says which extra to install
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose."""

    status: int = 500
    """HTTP status that the server answers with."""

    code: str = "internal_error"
    """Short machine-readable name, the `code` field of an error body."""

    retry_after_s: int | None = None
    """Seconds after which it makes sense to try again; None where it does not."""

    @property
    def for_callers(self) -> str:
        """The sentence for those who call over HTTP: without paths and commands of this machine."""
        return str(self)


class RequestError(HeadraceError):
    status = 400
    code = "invalid_request"


class InvalidParams(RequestError):
    code = "invalid_params"


class PromptTooLong(RequestError):
    code = "context_length_exceeded"


class UnknownModelName(RequestError):
    status = 404
    code = "model_not_found"


class ResponseNotFound(RequestError):
    status = 404
    code = "response_not_found"


class PreviousResponseNotFound(RequestError):
    code = "previous_response_not_found"


class Overloaded(RequestError):
    status = 429
    code = "overloaded"
    retry_after_s = 1


class NotPermitted(RequestError):
    status = 403
    code = "not_permitted"


class RateLimited(RequestError):
    status = 429
    code = "rate_limit_exceeded"
    retry_after_s = 1


class DeadlineExceeded(RequestError):
    status = 504
    code = "deadline_exceeded"


class ConfigError(HeadraceError):
    status = 400
    code = "invalid_config"


class DoesNotFit(ConfigError):
    code = "does_not_fit"


class ModelError(HeadraceError):
    status = 400
    code = "model_error"


class ModelNotFound(ModelError):
    status = 404
    code = "model_not_found"


class UnsupportedModel(ModelError):
    code = "unsupported_model"


class CheckpointError(ModelError):
    code = "checkpoint_error"


class TokenizerError(ModelError):
    code = "tokenizer_error"


class EngineDead(HeadraceError):
    status = 503
    code = "engine_dead"
    retry_after_s = 1


class MissingDependency(HeadraceError):
    """`command` installs what is missing; it may name a folder of this machine."""

    status = 501
    code = "missing_dependency"

    def __init__(self, reason: str, command: str | None = None) -> None:
        super().__init__(reason if command is None else f"{reason}: {command}")
        self._reason = reason

    @property
    def for_callers(self) -> str:
        return self._reason
