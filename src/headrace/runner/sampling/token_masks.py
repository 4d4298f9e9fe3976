"""Which tokens a grammar allows next: one matcher per sequence, and its masks, computed during the forward pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.core.forks import watch_forks
from headrace.core.types import UNFULFILLABLE, NewSequence
from headrace.errors import RequestError
from headrace.text.grammar_store import GrammarStore

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from headrace.runner.sampling.state import SampleRow
    from headrace.text.grammars import Compiled

Bits = NDArray[np.uint32]

STEP_S, BURST_S = 0.005, 0.1
"""CPU time that a grammar may take per token: on average, and at most. All sequences of a step wait for it."""
RENEWAL_S = 0.02
"""A matcher compiles its grammar again between two steps only if compiling took at most this time."""
TOO_SLOW = f"{UNFULFILLABLE}following the grammar takes too much time"
NOT_FOLLOWED = "the grammar could not be followed along a draft"
"""Of a row after a draft: the sequence goes on without the tokens from there on."""

_WORD_BITS = 32

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TokenMasks:
    """Bit t % 32 of word t // 32 says whether token t may come next. `errors`: rows whose grammar failed, and why."""

    bits: Bits  # [M, W]
    rows: list[int]  # [R]: the mask of each sampled row, -1 where every token may come
    errors: dict[int, str] = field(default_factory=dict)


class Matcher:
    """The position of one sequence in its grammar.

    An end-of-sequence token may come where the grammar is satisfied, stop ids not before `min_tokens` and ids to
    ignore never, unless no other token is allowed.
    """

    __slots__ = (
        "_ahead_s",
        "_compiled",
        "_inner",
        "_least",
        "_left_s",
        "_never",
        "_not_yet",
        "_renewed",
        "_taken",
    )

    def __init__(self, compiled: Compiled, new: NewSequence, eos_ids: frozenset[int]) -> None:
        self._compiled = compiled
        self._inner = compiled.start()
        self._renewed = False
        self._taken: list[int] = []
        words = compiled.words
        self._left_s = self._ahead_s = BURST_S  # for the output, and for drafts
        self._least = new.params.min_tokens
        self._not_yet = _bits_of(new.stop_ids, words) if self._least else None
        self._never = _bits_of(eos_ids, words) if new.params.ignore_eos else None

    @property
    def done(self) -> bool:
        """No token can follow the output."""
        return bool(self._inner.is_stopped()) and self.error is None

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further."""
        if self._left_s < 0:
            return TOO_SLOW
        if not self._inner.is_error():
            return None
        return f"{UNFULFILLABLE}the grammar ended in an error: {_first_line(self._inner.get_error())}"

    def advance(self, tokens: Sequence[int]) -> int:
        """Accept emitted tokens; returns how many of them belong to the output: those after its end do not."""
        start, taken = time.thread_time(), 0
        for token in tokens:
            taken += 1
            if not self._inner.consume_token(token) and self._renew():
                self._inner.consume_token(token)
            self._taken.append(token)
            if self._inner.is_stopped():
                break
        self._spend(start, taken)
        return taken

    def fill(self, out: Bits, position: int, paths: Sequence[Sequence[int]]) -> list[int]:
        """The masks out [N, W] after each of N paths of drafts from output position `position` on, () for none.

        Each path should have much in common with the one before. Masks after a draft that the grammar does not allow
        have no meaning: it will not be accepted. Returns the paths whose masks could not be computed: what drafts cost
        or exceed is no error of the sequence.
        """
        start = time.thread_time()
        ahead = [at for at, path in enumerate(paths) if path]
        for at, path in enumerate(paths):
            if not path:
                self._fill(self._inner, out[at], position)
                if self._inner.is_error() and self._renew():
                    self._fill(self._inner, out[at], position)
        self._spend(start, len(paths) - len(ahead))
        if not ahead or self.error is not None or self._ahead_s < 0:
            return ahead
        start = time.thread_time()
        failed = self._fill_ahead(out, position, paths, ahead)
        self._ahead_s = min(BURST_S, self._ahead_s + len(ahead) * STEP_S - (time.thread_time() - start))
        if (
            failed
        ):  # no further draft is followed; what it shares with this matcher may have reached its limit
            self._ahead_s, self._renewed = -1.0, False
        return failed

    def _fill_ahead(
        self, out: Bits, position: int, paths: Sequence[Sequence[int]], ahead: Sequence[int]
    ) -> list[int]:
        """The masks after the drafts of paths `ahead`; returns those that failed."""
        walker = self._inner.deep_copy()
        taken: list[int] = []
        for count, at in enumerate(ahead):
            path = paths[at]
            common = _common(taken, path)
            if common < len(taken):
                walker.rollback(len(taken) - common)
                del taken[common:]
            for token in path[common:]:
                if walker.is_stopped() or walker.validate_tokens([token]) != 1:
                    break
                walker.consume_token(token)
                taken.append(token)
            self._fill(walker, out[at], position + len(taken))
            if walker.is_error():
                return list(ahead[count:])
        return []

    def _renew(self) -> bool:
        """Start again with a fresh limit, so that a grammar fails only because of this sequence's own output."""
        if self._renewed:
            return False
        self._renewed = self._compiled.worn = True
        if self._compiled.cost_s > RENEWAL_S:
            return False
        inner = self._compiled.fresh()
        inner.consume_tokens(self._taken)
        if inner.is_error():
            return False
        self._inner = inner
        return True

    def _spend(self, start: float, tokens: int) -> None:
        if self._left_s >= 0:
            self._left_s = min(BURST_S, self._left_s + tokens * STEP_S - (time.thread_time() - start))

    def _fill(self, inner: LLMatcher, mask: Bits, position: int) -> None:  # mask [W]
        inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._never is not None:
            _remove(mask, self._never)
        if self._not_yet is not None and position < self._least:
            _remove(mask, self._not_yet)


class GrammarRunner:
    """The grammars of an executor's sequences."""

    def __init__(self, store: GrammarStore) -> None:
        self._store = store
        self._words = 0
        self._thread: ThreadPoolExecutor | None = None
        watch_forks(self)

    def after_fork(self) -> None:
        """In a child process: its thread does not exist there, the next grammar starts another one."""
        self._thread = None

    def start(self, new: NewSequence) -> Matcher | None:
        """The matcher of a sequence, None without a grammar. Its output before a preemption is replayed.

        Raises RequestError where that is impossible.
        """
        grammar = new.params.grammar
        if grammar is None:
            return None
        compiled = self._store.get(grammar)
        self._words = compiled.words
        matcher = Matcher(compiled, new, self._store.eos_ids)
        output = new.tokens[new.num_prompt :]
        if matcher.advance(output) != len(output) or matcher.error is not None:
            raise RequestError(matcher.error or "the output so far continues after the end of its grammar")
        return matcher

    def begin(self, rows: Sequence[SampleRow]) -> Future[TokenMasks] | None:
        """Start to compute the masks of rows that will be sampled; None where there are none."""
        if all(row.state.matcher is None for row in rows):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="token-masks")
        return self._thread.submit(self._compute, rows)

    def _compute(self, rows: Sequence[SampleRow]) -> TokenMasks:
        where = [-1] * len(rows)
        limited = [row for row, (state, _) in enumerate(rows) if state.matcher is not None]
        for mask, row in enumerate(limited):
            where[row] = mask
        masks = TokenMasks(np.zeros((len(limited), self._words), np.uint32), where)
        at = 0
        while at < len(limited):
            # The rows of one sequence are adjacent: after its output, then after each of its drafts.
            first = limited[at]
            state = rows[first].state
            count = 1
            while at + count < len(limited) and rows[limited[at + count]].state is state:
                count += 1
            matcher = state.matcher
            assert matcher is not None
            try:
                paths = [rows[row].assumed for row in limited[at : at + count]]
                failed = matcher.fill(masks.bits[at : at + count], state.num_output, paths)
                masks.errors.update({limited[at + path]: NOT_FOLLOWED for path in failed})
                error = matcher.error
            except Exception as fault:  # one sequence's grammar must not fail the others
                _log.error("the mask of a grammar could not be computed", exc_info=fault)
                error = "the mask of the grammar could not be computed"
            if error is not None:
                masks.errors.update(dict.fromkeys(limited[at : at + count], error))
            at += count
        return masks


def _bits_of(tokens: frozenset[int], words: int) -> Bits:
    bits = np.zeros(words, np.uint32)
    for token in tokens:
        if 0 <= token < words * _WORD_BITS:
            bits[token // _WORD_BITS] |= np.uint32(1 << token % _WORD_BITS)
    return bits


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of the first tokens are the same."""
    least = min(len(one), len(other))
    return next((at for at in range(least) if one[at] != other[at]), least)


def _remove(mask: Bits, tokens: Bits) -> None:
    left = mask & ~tokens
    if left.any():
        mask[:] = left


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
