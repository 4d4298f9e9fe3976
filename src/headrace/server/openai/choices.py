"""What answers of completions and chats are made of, whole or in chunks: choices, usage, the `headrace` block."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Generic, NotRequired, Protocol, TypeVar

from typing_extensions import TypedDict

from headrace.server.http.events import DONE, Chunk, EventWriter, event
from headrace.server.http.json_parts import JsonList, rounded
from headrace.server.openai.schemas import PromptFields
from headrace.server.requests.job import Job
from headrace.serving.requests.completion import Delta


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class ExplainedPrompt(TypedDict):
    """Times in seconds, null for phases that were not reached."""

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


class Explanation(TypedDict):
    prompts: list[ExplainedPrompt]


class UsageAnswer(TypedDict):
    """`headrace` is there if the request says `"explain": true`, `completion_tokens_details` if the model reasons."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]
    headrace: NotRequired[Explanation]


def usage(job: Job, explain: bool | None) -> UsageAnswer:
    """Token counts of a complete answer.

    With `explain`, there is an entry for each prompt: times in seconds, null for phases that were not reached, and
    `cache_miss`, null if all blocks that can be shared were. It contains nothing about requests with another salt or
    key.
    """
    metrics = job.metrics
    prompt = sum(one.num_prompt_tokens for one in metrics)
    output = sum(one.num_output_tokens for one in metrics)
    counts: UsageAnswer = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(one.num_cached_tokens for one in metrics)},
    }
    if explain:
        explained: list[ExplainedPrompt] = [
            {
                "prompt_tokens": one.num_prompt_tokens,
                "cached_tokens": one.num_cached_tokens,
                "cache_miss": one.cache_miss,
                "output_tokens": one.num_output_tokens,
                "preemptions": one.num_preemptions,
                "queue_s": rounded(one.queue_s),
                "prefill_s": rounded(one.prefill_s),
                "decode_s": rounded(one.decode_s),
                "ttft_s": rounded(one.ttft_s),
                "tpot_s": rounded(one.tpot_s),
                "e2e_s": rounded(one.e2e_s),
            }
            for one in metrics
        ]
        counts["headrace"] = {"prompts": explained}
    return counts


def head(kind: str, job: Job, model: str) -> dict[str, Any]:
    """The fields that all chunks of a stream share."""
    return {"id": job.name, "object": kind, "created": int(time.time()), "model": model}


class Column(Protocol):
    """One field of a choice, as it grows."""

    def add(self, delta: Delta) -> None: ...

    def value(self) -> Any:
        """All of it, for `json_parts`."""
        ...


Entry = TypeVar("Entry")


class Rows(Generic[Entry]):
    """A column with an entry a token, kept as JSON. `first`: entries before those of any token."""

    def __init__(self, entries: Callable[[Delta], Sequence[Entry]], first: Sequence[Entry] = ()) -> None:
        self._entries = entries
        self._list = JsonList[Entry]()
        self._list.extend(first)

    def add(self, delta: Delta) -> None:
        self._list.extend(self._entries(delta))

    def value(self) -> JsonList[Entry]:
        return self._list


class Text:
    """A column with a completion's text."""

    def __init__(self) -> None:
        self._text = io.StringIO()

    def add(self, delta: Delta) -> None:
        self._text.write(delta.text)

    def value(self) -> str:
        return self._text.getvalue()


def token_ids() -> Rows[int]:
    """The column `token_ids`, as in vLLM."""
    return Rows(lambda delta: delta.token_ids)


class Choice:
    """One completion of an answer that is sent whole; `finish_reason` and `stop_reason` are those of its end."""

    def __init__(self, index: int, columns: Mapping[str, Column]) -> None:
        self.index = index
        self._columns = columns
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        for column in self._columns.values():
            column.add(delta)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def column(self, name: str) -> Any:
        """The value of a column; None if there is no such column."""
        column = self._columns.get(name)
        return None if column is None else column.value()


HOLE = "\ue000text\ue000"
"""Marks the place of the text in the chunk that a template is made from; a private-use character."""

_HOLE = encode_basestring(HOLE).encode()


class ChunkTemplate:
    """Made from a chunk that holds HOLE once, as a whole value. Raises ValueError for any other."""

    __slots__ = ("_after", "_before")

    def __init__(self, chunk: Chunk) -> None:
        self._before, self._after = event(chunk).split(_HOLE)

    def event(self, text: str) -> bytes:
        """The event of the chunk with this text in the place of HOLE."""
        return self._before + encode_basestring(text).encode() + self._after


class ChunkWriter(EventWriter[tuple[int, Delta]]):
    """The chunks of a streamed answer; a chunk with usage and [DONE] end it.

    `plain`: chunks of this stream differ in their text alone, except the first and the last of a choice, so that
    `templates` can write them.
    """

    def __init__(
        self, kind: str, job: Job, model: str, body: PromptFields, prompt_tokens: int, logprobs: bool
    ) -> None:
        self.job = job
        self.body = body
        self.common = head(kind, job, model)
        if body.streamed_usage:
            self.common["usage"] = None
        self.with_ids = bool(body.return_token_ids)
        self.templates: dict[int, ChunkTemplate] = {}
        self.plain = not (logprobs or body.continuous_usage or self.with_ids)
        self._continuous_usage = body.continuous_usage
        self._prompt_tokens, self._output_tokens = prompt_tokens, 0

    def count(self, delta: Delta) -> None:
        """With `continuous_usage_stats`, every chunk counts the tokens so far."""
        if self._continuous_usage:
            self._output_tokens += len(delta.token_ids)
            prompt, output = self._prompt_tokens, self._output_tokens
            total = prompt + output
            counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total}
            self.common["usage"] = counts

    def usage(self) -> UsageAnswer:
        return usage(self.job, self.body.explain)

    def end(self) -> Iterable[bytes]:
        if self.body.streamed_usage:
            yield event(self.common | {"choices": [], "usage": self.usage()})
        yield DONE
