"""Bodies that no client should send: valid ones, changed by a seeded hand."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MESSAGES = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once."}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "Once upon a time", "max_tokens": 3},
        {"prompt": [5, 6, 7], "max_tokens": 2, "n": 2, "temperature": 0.7, "seed": 1, "logprobs": 2, "echo": True},
        {
            "prompt": ["A", "B"], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True},
            "stop": ["x"], "logit_bias": {"7": 1.5}, "presence_penalty": 0.1, "frequency_penalty": 0.1,
        },
        {"prompt": "A", "max_tokens": 2, "top_k": 5, "min_p": 0.1, "top_p": 0.9, "repetition_penalty": 1.1,
         "min_tokens": 1, "stop_token_ids": [3], "allowed_token_ids": [4, 5, 6], "priority": 1, "cache_salt": "s"},
        {"prompt": "A", "max_tokens": 8, "guided_regex": "[ab]{2,4}", "user": "somebody", "explain": True},
    ],
    "/v1/chat/completions": [
        {"messages": MESSAGES, "max_tokens": 3},
        {"messages": MESSAGES, "max_completion_tokens": 2, "stream": True, "logprobs": True, "top_logprobs": 2},
        {"messages": MESSAGES, "max_tokens": 12, "tools": [TOOL], "tool_choice": "auto"},
        {
            "messages": MESSAGES, "max_tokens": 12,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
        {"messages": MESSAGES, "max_tokens": 2, "chat_template_kwargs": {"x": 1}, "add_generation_prompt": False},
    ],
    "/v1/messages": [
        {"messages": MESSAGES, "max_tokens": 3, "system": "Be kind."},
        {"messages": MESSAGES, "max_tokens": 3, "stream": True, "stop_sequences": ["x"], "top_k": 5},
        {
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}},
            ]}],
            "max_tokens": 12, "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"},
        },
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "Rain."}]},
            ],
            "max_tokens": 2, "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "a"},
        },
    ],
    "/v1/messages/count_tokens": [
        {"messages": MESSAGES, "system": "Be kind.", "tools": [{"name": "f", "input_schema": SCHEMA}]},
    ],
    "/v1/responses": [
        {"input": "Tell me a story.", "max_output_tokens": 3, "instructions": "Be kind."},
        {"input": MESSAGES, "max_output_tokens": 3, "stream": True, "temperature": 0.5, "metadata": {"a": "b"}},
        {"input": "Hello", "max_output_tokens": 8, "text": {"format": {"type": "json_object"}}},
    ],
    "/api/chat": [
        {"messages": MESSAGES[:1], "options": {"num_predict": 3, "seed": 1, "temperature": 0.5}},
        {"messages": MESSAGES, "options": {"num_predict": 2, "num_ctx": 64}, "stream": False, "logprobs": True},
        {"messages": MESSAGES, "options": {"num_predict": 12}, "tools": [TOOL], "think": False},
        {"messages": MESSAGES, "options": {"num_predict": 12}, "format": SCHEMA, "keep_alive": "5m"},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "a"}}}]},
                {"role": "tool", "tool_name": "look", "content": "b"},
            ],
            "options": {"num_predict": 2},
        },
    ],
    "/api/generate": [
        {"prompt": "Once upon a time", "options": {"num_predict": 3, "stop": ["x"]}, "system": "Be kind."},
        {"prompt": "Once", "raw": True, "stream": False, "options": {"num_predict": 3, "top_k": 5}},
        {"prompt": "", "keep_alive": 0},
    ],
    "/api/embed": [{"input": ["a", "b"], "dimensions": 8, "truncate": True}, {"input": "Once upon a time"}],
    "/api/embeddings": [{"prompt": "Once upon a time"}],
    "/api/show": [{"model": "tale", "verbose": True}],
    "/v1/embeddings": [
        {"input": "Once upon a time"},
        {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8},
    ],
    "/tokenize": [
        {"prompt": "Once upon a time", "add_special_tokens": True, "return_token_strs": True},
        {"messages": MESSAGES},
    ],
    "/detokenize": [{"tokens": [5, 6, 7]}],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A request: `raw` as it goes over the wire."""

    number: int
    path: str
    raw: bytes
    content_type: str = "application/json"


def cases(count: int, seed: int) -> Iterator[Case]:
    """`count` changed bodies, over all routes in turn; the same ones for the same seed."""
    hand = random.Random(seed)
    paths = list(BODIES)
    for number in range(count):
        path = paths[number % len(paths)]
        body = copy.deepcopy(hand.choice(BODIES[path]))
        if hand.random() < 0.8:
            for _ in range(hand.choice((1, 1, 1, 2, 3))):
                body = changed(body, hand)
            yield Case(number, path, written(body))
        else:
            raw, kind = damaged(written(body), hand)
            yield Case(number, path, raw, kind)


def written(body: object) -> bytes:
    # NaN and infinities as Python and some clients write them; lone surrogates as escapes.
    return json.dumps(body).encode()


def junk(hand: random.Random) -> object:
    """A value that is seldom welcome."""
    return hand.choice(JUNK)(hand)


def changed(body: Any, hand: random.Random) -> Any:
    """One change somewhere in the body."""
    if not isinstance(body, (dict, list)):
        return body
    places = list(_places(body))
    if not places:
        return junk(hand)
    holder, key = hand.choice(places)
    kind = hand.randrange(5)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[hand.choice(("extra", "", "model", "__class__", "n", "stream", "priority", "\ud800"))] = junk(
            hand
        )
    elif kind == 2:
        holder[key] = [holder[key]] * hand.choice((0, 1, 2, 40))
    elif kind == 3:
        holder[key] = {"value": holder[key]}
    else:
        holder[key] = junk(hand)
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)) and value[key]:
            yield from _places(value[key])


def _nested(hand: random.Random) -> object:
    value: object = 1
    for _ in range(hand.choice((20, 60, 200, 300))):  # three of them in one another can still be written
        value = [value] if hand.random() < 0.5 else {"a": value}
    return value


JUNK = (
    lambda hand: None,
    lambda hand: hand.choice((True, False)),
    lambda hand: hand.choice((0, -1, 1, 2**31, -(2**31), 2**63, 2**64, -(2**63) - 1, 10**30, 10**400)),
    lambda hand: hand.choice((0.0, -0.5, 1e300, -1e300, 1e-300, math.nan, math.inf, -math.inf)),
    lambda hand: hand.choice(
        ("", " ", "1", "nan", "null", "\x00", "\ud800", "é" * 50, "a" * 5000, "%s%n{0}")
    ),
    lambda hand: hand.choice(([], [None], [[]], [1.5], ["a", 1], [[1], "a"], [2**40], [-1], [True])),
    lambda hand: hand.choice(({}, {"a": None}, {"type": "text"}, {"role": 1}, {"0": "a"}, {"-1": 2.0})),
    lambda hand: hand.choice(("(a+)+$", "[", "(?=a)b", "a{100000}", "\\p{L}{1,9999}", "(" * 300)),
    lambda hand: {"$ref": "#"},
    _nested,
)


def damaged(raw: bytes, hand: random.Random) -> tuple[bytes, str]:
    """(a body that is hardly JSON any more, its content type)."""
    kind = hand.randrange(9)
    at = hand.randrange(len(raw))
    if kind == 0:
        return raw[:at], "application/json"
    if kind == 1:
        return raw[:at] + bytes([hand.randrange(256)]) + raw[at + 1 :], "application/json"
    if kind == 2:
        return raw[:at] + b"\xff\xfe" + raw[at:], "application/json"
    if kind == 3:
        return raw, hand.choice(
            ("text/plain", "application/xml", "multipart/form-data", "", "application/json;x")
        )
    if kind == 4:
        return raw[:-1] + b', "max_tokens": 1, "max_tokens": -1, "n": 1, "n": "x"}', "application/json"
    if kind == 5:
        return b"[" * hand.choice((10, 1000, 50_000)), "application/json"
    if kind == 6:
        return hand.choice(
            (b"", b"null", b"[]", b'"a"', b"1", b"NaN", b"{}", b"\xef\xbb\xbf{}")
        ), "application/json"
    if kind == 7:
        return raw.decode().encode("utf-16"), "application/json"
    return b'{"a":' * hand.choice((10, 1000, 20_000)) + b"1", "application/json"
