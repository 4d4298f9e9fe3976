"""Grammars compiled for one model's vocabulary. Loads llguidance: imported only if an output must follow a grammar.

A grammar comes from a request, so its costs are bounded: the size of its source by `headrace.core.grammar`, the work of
the lexer and the parser by the limits here, and the time and memory of compiling, which llguidance does not bound, by
`headrace.serving.grammar.worker`.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from headrace.core.grammar import CHOICE, JSON_OBJECT, JSON_SCHEMA, REGEX, Grammar
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.grammar.words import JSON_LAYOUT

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_REASON_CHARS = 300
_TRIED_TOKENS = 4

_LAYOUT: JsonCompileOptions = {"whitespace_pattern": JSON_LAYOUT["whitespace_pattern"]}

LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=500_000,
    # For one mask, which delays all sequences of a step: some milliseconds.
    step_lexer_fuel=40_000,
    step_max_items=10_000,
    max_lexer_states=20_000,  # of 1 to 2 kB
    max_grammar_size=50_000,
    verbose_errors=False,  # else they hold what was generated so far
)


class Compiled:
    """A compiled grammar, for any number of sequences.

    Matchers that are copies of one another share what they have computed about the vocabulary, and it has a limit: a
    matcher can fail because of the others' share. Its caller then sets `worn` and continues with a `fresh` one.
    """

    __slots__ = ("__weakref__", "_matcher", "_source", "_tokenizer", "cost_s", "size", "words", "worn")

    def __init__(self, tokenizer: LLTokenizer, source: str) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._matcher = self.fresh()
        self.words = -(-tokenizer.vocab_size // 32)
        """32-bit words of a mask of the tokens that may come next."""
        self.size = 0
        """Bytes that it holds, if that was measured."""
        self.cost_s = 0.0
        """Processor time of compiling."""
        self.worn = False

    def start(self) -> LLMatcher:
        """A matcher at the beginning, which shares what others have computed."""
        return self._matcher.deep_copy()

    def fresh(self) -> LLMatcher:
        """A matcher at the beginning that shares nothing; costs as much as compiling."""
        return LLMatcher(self._tokenizer, self._source, log_level=0, limits=LIMITS)


class GrammarCompiler:
    """Compiles for a model with logits for `vocab_size` ids, of which `eos_ids` end a text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> None:
        ends = sorted(token for token in eos_ids if 0 <= token < min(vocab_size, tokenizer.vocab_size))
        if not ends:
            raise InvalidParams(
                "a grammar needs a model with an end-of-sequence token, and this one has none"
            )
        try:
            self._tokenizer = LLTokenizer(
                tokenizer.to_json(), n_vocab=max(vocab_size, tokenizer.vocab_size), eos_token=ends
            )
        except ValueError as error:
            raise InvalidParams(
                f"this model's tokenizer cannot follow grammars: {_reason(str(error))}"
            ) from error

    def compile(self, grammar: Grammar) -> Compiled:
        """Raises InvalidParams with llguidance's reason for an invalid grammar, or one beyond the limits.

        Releases the GIL. A few tokens are tried as well: the first masks are the most expensive, and have limits of
        their own.
        """
        start = time.thread_time()
        compiled = Compiled(self._tokenizer, _source(grammar))
        error = self._try(compiled)
        if error:
            raise InvalidParams(f"the {grammar.kind} grammar cannot be used: {_reason(error)}")
        compiled.cost_s = time.thread_time() - start
        return compiled

    def _try(self, compiled: Compiled) -> str:
        """The error at the beginning of a text; empty if there is none."""
        walker = compiled.start()
        for _ in range(_TRIED_TOKENS):
            mask = int.from_bytes(walker.compute_bitmask(), "little")
            for end in self._tokenizer.eos_tokens:
                mask &= ~(1 << end)
            if walker.is_error() or walker.is_stopped() or not mask:
                break
            walker.consume_token((mask & -mask).bit_length() - 1)
        return walker.get_error()


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it."""
    source = grammar.source
    if grammar.kind == JSON_OBJECT:
        source = '{"type": "object"}'
    if grammar.kind in (JSON_OBJECT, JSON_SCHEMA):
        try:
            return LLMatcher.grammar_from_json_schema(source, overrides=_LAYOUT)
        except ValueError as error:
            raise InvalidParams(
                f"the {grammar.kind} grammar cannot be used: {_reason(str(error))}"
            ) from error
    if grammar.kind == REGEX:
        return LLMatcher.grammar_from_regex(source)
    if grammar.kind == CHOICE:
        choices = " | ".join(json.dumps(choice) for choice in json.loads(source))
        return LLMatcher.grammar_from_lark(f"start: {choices}\n")
    return LLMatcher.grammar_from_lark(source)


_CARET = re.compile(r"\s*(\d+ \||\^)")


def _reason(text: str) -> str:
    """llguidance's message in one line, without excerpts of the grammar, the parser's state, and traces."""
    if text.startswith("panic"):
        return "it is too large"
    if text.startswith("NoExtension"):
        return "no text matches it"
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("<"):
            break
        if line.startswith("error: "):
            kept = [line.removeprefix("error: ")]
        elif line.strip() and not _CARET.match(line) and not line.startswith("    "):
            kept.append(line.strip())
    return " ".join(kept)[:MAX_REASON_CHARS] or "it is invalid"
