"""Structured output does not depend on what else happens, and is always what was asked for.

Half of the requests follow a grammar each, the others follow none. They run alone and then together in an engine that
shares, splits, preempts and verifies drafts; no token may differ, and every output of a grammar must belong to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.executor import Executor
from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest
from headrace.runner.sampling.token_masks import Matcher
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.server.conftest import TALE
from tests.test_exactness import CASES, Guessing, Run, Tokens, alone, combinations, requests_for, run

needs.package("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "who": {"type": "string", "maxLength": 12},
        "legs": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["small", "large", None]},
        "likes": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["who", "legs", "kind", "likes"],
    "additionalProperties": False,
}


def is_pet(text: str) -> bool:
    made = json.loads(text)
    return (
        set(made) == {"who", "legs", "kind", "likes"}
        and isinstance(made["who"], str)
        and len(made["who"]) <= 12
        and type(made["legs"]) is int
        and 1 <= made["legs"] <= 9
        and made["kind"] in ("small", "large", None)
        and 1 <= len(made["likes"]) <= 3
        and all(isinstance(value, bool) for value in made["likes"])
    )


def matching(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


CHOICES = ["a fox", "a cat and a dog", "nobody"]
GRAMMARS: list[tuple[Grammar, Callable[[str], bool]]] = [
    (Grammar("json_schema", SCHEMA), is_pet),  # type: ignore[arg-type]
    (Grammar("regex", "[a-z ]{20,40}[.!?]"), matching("[a-z ]{20,40}[.!?]")),
    (Grammar("choice", CHOICES), lambda text: text in CHOICES),  # type: ignore[arg-type]
    (Grammar("lark", 'start: item ("," item)~4\nitem: /[a-c]{1,3}/ | "(" item ")"\n'), matching(r"(\(*[abc]+\)*,?)+")),
]  # fmt: skip
MODELS: dict[str, dict[str, object]] = {
    "native": {"model": "tale"},
    "torch": {"model": "tale", "ops_force": "torch"},
}


def mixed(n: int = 1) -> list[NewRequest]:
    """As in the exactness tests, but every second request follows a grammar that ends it."""
    made = []
    for index, request in enumerate(requests_for(count=8, n=n, max_tokens=40)):
        params = request.params
        if index % 4 != 1:
            grammar = GRAMMARS[(index // 2) % len(GRAMMARS)][0]
            params = replace(params, grammar=grammar, ignore_eos=index % 3 == 0, max_tokens=60)
        made.append(replace(request, params=params))
    return made


def check(seen: Run, requests: list[NewRequest]) -> int:
    """Every output that ended belongs to its grammar; returns how many did."""
    tokenizer, checked = Tokenizer.from_folder(TALE), 0
    checks = dict(GRAMMARS)
    for request in requests:
        if request.params.grammar is None:
            continue
        for index in range(request.params.n):
            key = (request.request_id, index)
            if seen.finished[key] is FinishReason.STOP:
                text = tokenizer.decode(seen.tokens[key])
                assert checks[request.params.grammar](text), text
                checked += 1
    return checked


@pytest.fixture(scope="module")
def expected() -> Callable[[str, int], Tokens]:
    known: dict[tuple[str, int], Tokens] = {}

    def of(kind: str, n: int = 1) -> Tokens:
        if (kind, n) not in known:
            known[kind, n] = alone(MODELS[kind], mixed(n))
        return known[kind, n]

    return of


@pytest.mark.parametrize(("kind", "case"), combinations(CASES, {"torch": ""}, MODELS))
def test_no_token_differs(kind: str, case: str, expected: Callable[..., Tokens]) -> None:
    options, happened = CASES[case]
    seen = run({**MODELS[kind], **options}, mixed())
    assert happened(seen), seen
    assert check(seen, mixed()) >= 4
    assert seen.tokens == expected(kind)


@pytest.mark.parametrize("kind", ["native", pytest.param("torch", marks=pytest.mark.long)])
def test_several_completions_each_follow_their_own(kind: str, expected: Callable[..., Tokens]) -> None:
    options: dict[str, object] = {
        "block_size": 4,
        "num_kv_blocks": 50,
        "max_model_len": 150,
        "max_num_seqs": 6,
    }
    seen = run({**MODELS[kind], **options}, mixed(n=3))
    assert seen.forks >= 2 and seen.preemptions >= 1
    assert check(seen, mixed(n=3)) >= 6
    assert seen.tokens == expected(kind, 3)


@pytest.mark.parametrize(("kind", "trees"), [("native", False), ("torch", False), ("native", True)])
def test_verified_drafts_change_nothing(kind: str, trees: bool, expected: Callable[..., Tokens]) -> None:
    plain = expected(kind)
    options = {**MODELS[kind], "enable_prefix_caching": False, "block_size": 16}
    if trees:  # the heads' own drafts are replaced
        options |= {"speculative": "tale-medusa", "adaptive_speculation": False}

    def wrap(executor: Executor) -> Executor:
        return Guessing(executor, {key: plain[key] for key in plain}, trees=trees)  # type: ignore[arg-type]

    seen = run(options, mixed(), wrap=wrap)
    assert 0 < seen.accepted < seen.drafted
    assert check(seen, mixed()) >= 4
    assert seen.tokens == plain


def test_a_matcher_that_forgets_after_preemption_is_noticed(
    expected: Callable[..., Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = expected("native")
    monkeypatch.setattr(Matcher, "advance", _forgetful(Matcher.advance))
    options, _ = CASES["preemption"]
    try:
        seen = run({**MODELS["native"], **options}, mixed())
    except AssertionError:
        return  # a request failed
    assert seen.tokens != plain


def _forgetful(advance: Callable[[Matcher, Any], int]) -> Callable[[Matcher, Any], int]:
    def replaced(self: Matcher, tokens: Any) -> int:
        return len(tokens) if len(tokens) > 1 else advance(self, tokens)  # a replay brings several at once

    return replaced


def test_grammars_change_the_output(expected: Callable[..., Tokens]) -> None:
    free = [replace(one, params=replace(one.params, grammar=None)) for one in mixed()]
    assert alone(MODELS["native"], free) != expected("native")
    assert SamplingParams().grammar is None


def test_masks_that_are_not_applied_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def anything(self: Matcher, inner: Any, mask: Any, position: int) -> None:
        mask[:] = 2**32 - 1

    monkeypatch.setattr(Matcher, "_fill", anything)
    monkeypatch.setattr(Matcher, "advance", lambda self, tokens: len(tokens))
    requests = [replace(one, params=replace(one.params, ignore_eos=False)) for one in mixed()]
    seen = run({**MODELS["native"]}, requests)
    seen.finished = dict.fromkeys(seen.finished, FinishReason.STOP)
    with pytest.raises((AssertionError, ValueError)):
        check(seen, requests)
