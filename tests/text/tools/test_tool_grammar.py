"""Grammars of tool calls: what must be accepted and refused, in every call format."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.grammar.fixed import answer_grammar
from headrace.text.tools.grammar.words import ToolSchema
from tests import needs
from tests.places import TALE

llguidance = needs.package("llguidance")

TOOLS = [
    ToolSchema(
        'we"ath\\er\n',
        {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Oslo", "Århus"]}},
        },
    ),
    ToolSchema("clock", {"type": "object", "properties": {}, "additionalProperties": False}),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


@pytest.fixture(scope="module")
def backend(tokenizer: Tokenizer) -> Any:
    text = (TALE / "tokenizer.json").read_text()
    return llguidance.LLTokenizer(text, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_ids))


def accepts(backend: Any, source: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(backend, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = backend.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


CALL_FORMATS = ["hermes", "llama3_json", "mistral"]
"""Others are in test_family_grammars.py."""


def written(call_format: str, calls: list[dict[str, Any]]) -> str:
    key = "parameters" if call_format == "llama3_json" else "arguments"
    parts = [json.dumps({"name": c["name"], key: c["arguments"]}, ensure_ascii=False) for c in calls]
    match call_format:
        case "hermes":
            return "\n".join(f"<tool_call>\n{part}\n</tool_call>" for part in parts)
        case "llama3_json":
            return "; ".join(parts)
        case _:
            return f"[TOOL_CALLS][{', '.join(parts)}]"


CLOCK = {"name": "clock", "arguments": {}}
WEATHER = {"name": 'we"ath\\er\n', "arguments": {"city": "Århus"}}


@pytest.mark.parametrize("call_format", CALL_FORMATS)
def test_calls_are_accepted_and_nothing_else(backend: Any, call_format: str) -> None:
    many = answer_grammar(None, TOOLS, call_format).source
    one = answer_grammar(None, TOOLS, call_format, parallel=False).source
    for calls in ([CLOCK], [WEATHER]):
        assert accepts(backend, one, written(call_format, calls))
    assert accepts(backend, many, written(call_format, [CLOCK, WEATHER, CLOCK]))
    assert not accepts(backend, one, written(call_format, [CLOCK, WEATHER]))
    for wrong in (
        {"name": "other", "arguments": {}},
        {"name": "clock", "arguments": {"city": "Oslo"}},
        WEATHER | {"arguments": {"city": "Paris"}},
        WEATHER | {"arguments": {}},
    ):
        assert not accepts(backend, many, written(call_format, [wrong]))
    good = written(call_format, [CLOCK])
    for text in ("", f" {good}", f"{good}x", good[:-1], good[1:]):
        assert not accepts(backend, many, text)


def test_a_marker_that_is_a_special_token_is_written_as_that_token(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    text = (TALE / "tokenizer.json").read_text().replace("<|system|>", "[TOOL_CALLS]")
    (tmp_path / "tokenizer.json").write_text(text)
    special = Tokenizer.from_folder(tmp_path)
    number = special.special_id("[TOOL_CALLS]")
    assert number is not None and tokenizer.special_id("[TOOL_CALLS]") is None
    source = answer_grammar(None, TOOLS, "mistral", special).source
    backend = llguidance.LLTokenizer(text, n_vocab=special.vocab_size, eos_token=1)
    rest = backend.tokenize_str('[{"name": "clock", "arguments": {}}]')
    matcher = llguidance.LLMatcher(backend, source, log_level=0)
    assert matcher.consume_tokens([number, *rest]) and matcher.is_accepting()


def test_what_is_generated_at_random_is_a_call(backend: Any) -> None:
    source = answer_grammar(None, TOOLS, "hermes", parallel=False).source
    pattern = re.compile(r'<tool_call>\n(\{"name": .*\})\n</tool_call>', re.DOTALL)
    for seed in range(5):
        rng, ids = random.Random(seed), []
        matcher = llguidance.LLMatcher(backend, source, log_level=0)
        while not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            ids.append(rng.choice([i for i in range(backend.vocab_size) if mask[i // 8] >> (i % 8) & 1]))
            assert matcher.consume_token(ids[-1])
        found = pattern.fullmatch(backend.decode_str([i for i in ids if i not in backend.eos_tokens]))
        assert found is not None
        assert json.loads(found[1])["name"] in {tool.name for tool in TOOLS}


@pytest.mark.parametrize(
    ("tools", "call_format", "what"),
    [
        (TOOLS, "xml", "hermes"),
        ([], "hermes", "at least one"),
        ([ToolSchema("a", {"minimum": float("nan")})], "hermes", "not JSON"),
        ([ToolSchema("a", {"minimum": object()})], "hermes", "not JSON"),
        ([ToolSchema("a" * 70_000)], "hermes", "at most"),
    ],
)
def test_unsupported_tools_are_refused(tools: list[ToolSchema], call_format: str, what: str) -> None:
    with pytest.raises(InvalidParams, match=what):
        answer_grammar(None, tools, call_format)
