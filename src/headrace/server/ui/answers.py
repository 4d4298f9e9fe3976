"""What routes answer, as the OpenAPI page tells it. Answers are plain objects; tests hold them against these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error has this shape, whatever the route."""

    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class ExplainedPrompt(BaseModel):
    """Times in seconds, null where it did not come to that."""

    prompt_tokens: int
    cached_tokens: int
    cache_miss: str | None
    output_tokens: int
    preemptions: int
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None


class Explanation(BaseModel):
    prompts: list[ExplainedPrompt]


class UsageAnswer(BaseModel):
    """`headrace` is there where the request says `"explain": true`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    headrace: Explanation = Explanation(prompts=[])


class TextLogprobsAnswer(BaseModel):
    """One entry a token. Nothing predicts the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str | None


class TextChoice(BaseModel):
    """The last three where they are asked for."""

    index: int
    text: str
    logprobs: TextLogprobsAnswer | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageAnswer


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class TokenChance(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(TokenChance):
    top_logprobs: list[TokenChance]


class ChatLogprobsAnswer(BaseModel):
    content: list[ChatToken]


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobsAnswer | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatAnswer(BaseModel):
    """The last two where they are asked for."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None


class ResponsesAnswer(BaseModel):
    """OpenAI's response object; `output` holds messages, reasoning and calls of functions."""

    id: str
    object: Literal["response"]
    created_at: float
    model: str
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: bool


class MessagesErrorDetail(BaseModel):
    type: str
    message: str


class MessagesErrorAnswer(BaseModel):
    """Errors of the Messages API."""

    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: str | None


class MessagesUsage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """Anthropic's message; `content` holds blocks of text, thinking and tool_use."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessagesUsage


class CountTokensAnswer(BaseModel):
    input_tokens: int


class EmbeddingEntry(BaseModel):
    """`embedding` is a list of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class EmbeddingAnswer(BaseModel):
    object: Literal["list"]
    model: str
    data: list[EmbeddingEntry]
    usage: EmbeddingUsage


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(BaseModel):
    prompt: str


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class StatusAnswer(BaseModel):
    """`reason` says why there is no engine, where there is none."""

    status: str
    reason: str | None = None


class VersionAnswer(BaseModel):
    version: str


class KeyUsage(BaseModel):
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    refused: dict[str, int]


class UsageReport(BaseModel):
    """Counts by the name of the key since the server started."""

    object: Literal["usage"]
    keys: dict[str, KeyUsage]
    unauthorized: int
    queue: dict[str, int] | None


# ---- Ollama's API ----


class OllamaErrorAnswer(BaseModel):
    error: str


class OllamaFunction(BaseModel):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(BaseModel):
    id: str
    function: OllamaFunction


class OllamaMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaCall] = []


class OllamaEnd(BaseModel):
    """Of a line. The last one has the counts, and durations in nanoseconds; none where nothing was to be generated."""

    model: str
    created_at: str
    logprobs: list[Any] = []
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class OllamaChatAnswer(OllamaEnd):
    message: OllamaMessage


class OllamaGenerateAnswer(OllamaEnd):
    response: str
    thinking: str | None = None


class OllamaEmbedAnswer(BaseModel):
    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class OllamaEmbeddingAnswer(BaseModel):
    embedding: list[float]


class OllamaDetails(BaseModel):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    """What /api/show answers."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaModelCard(BaseModel):
    """The last three in /api/ps."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str = ""
    size_vram: int = 0
    context_length: int | None = None


class OllamaModelList(BaseModel):
    models: list[OllamaModelCard]
