"""Grammars compiled for one model's vocabulary. Loads llguidance: imported only where an output must follow a grammar.

A grammar is a program that a stranger wrote, so everything it may cost is bounded: the size of its source by
`headrace.core.grammar`, the work of the lexer and the parser by the limits here, and the time and memory of compiling,
which llguidance does not bound, by `headrace.serving.grammar.worker`.
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
    # Of one mask, for which all other sequences of a step wait: some milliseconds.
    step_lexer_fuel=40_000,
    step_max_items=10_000,
    max_lexer_states=20_000,  # of 1 to 2 kB
    max_grammar_size=50_000,
    verbose_errors=False,  # else they hold what was generated so far
)


class Compiled:
    """A grammar that is ready to be followed by any number of sequences.

    What one matcher finds out about the vocabulary all copies of it share, and it has a limit: a matcher can fail
    because of what others have found out. Whoever meets that sets `worn` and goes on with a matcher of its own.
    """

    __slots__ = ("__weakref__", "_matcher", "_source", "_tokenizer", "cost_s", "size", "words", "worn")

    def __init__(self, tokenizer: LLTokenizer, source: str) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._matcher = self.fresh()
        self.words = -(-tokenizer.vocab_size // 32)
        """32-bit words of a mask of the tokens that may come next."""
        self.size = 0
        """Bytes that it holds, where somebody has measured that."""
        self.cost_s = 0.0
        """Processor time that it took to compile."""
        self.worn = False

    def start(self) -> LLMatcher:
        """A matcher at the beginning, which shares what others have found out."""
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
        """Raises InvalidParams with llguidance's reason for a grammar without meaning, or beyond the limits.

        The GIL is free meanwhile. A few tokens are tried out, too: the first masks are the dearest, and have limits of
        their own.
        """
        start = time.thread_time()
        compiled = Compiled(self._tokenizer, _source(grammar))
        error = self._try_out(compiled)
        if error:
            raise InvalidParams(f"the {grammar.kind} grammar cannot be used: {_reason(error)}")
        compiled.cost_s = time.thread_time() - start
        return compiled

    def _try_out(self, compiled: Compiled) -> str:
        """What goes wrong at the beginning of a text; empty if nothing does."""
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
    """llguidance's message in one line: without the excerpts of the grammar, the state of the parser, and traces."""
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
    return " ".join(kept)[:MAX_REASON_CHARS] or "it has no meaning"
