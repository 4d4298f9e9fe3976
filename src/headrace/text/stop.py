"""Stop strings, found in streamed text for any pieces, in linear time.

The text is matched one character at a time, so the result does not depend on the pieces: the match that
*ends* first wins (generation may stop there), and of several that end at the same character the longest wins (it
leaves the least text after it).

The matcher is an Aho-Corasick automaton (Aho and Corasick, CACM 18(6), 1975). The depth of its state is the length of
the longest suffix that could still become a stop, which is what must be held back. That suffix is a prefix of a stop
string, so it is not stored: hostile stops cost no more than others.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from headrace.core.params import MAX_STOP_CHARS, MAX_STOP_STRINGS
from headrace.errors import InvalidParams


class StopAutomaton:
    """Stop strings as nodes of a tree; immutable, so any number of completions may share it.

    stops: up to `MAX_STOP_STRINGS` non-empty strings, `MAX_STOP_CHARS` characters together, as SamplingParams
    checks them.

    Raises InvalidParams for others.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = _checked(stops)
        # Node 0 is the empty prefix. For every node: its edges, the node of its longest proper suffix, its length,
        # a stop that begins with it, and the longest stop that ends with it (-1: none).
        most = 1 + sum(map(len, self.stops))
        self.edges: list[dict[str, int]] = [{}]
        self.fail = [0] * most
        self.depth = [0] * most
        self.stop_of = [0] * most
        self.ending = [-1] * most
        for index, stop in enumerate(self.stops):
            self._insert(index, stop)
        self._link()

    @classmethod
    def of(cls, stops: Sequence[str]) -> StopAutomaton:
        """The automaton of these stops. The completions of a request share one while it is in use. Raises as the
        constructor."""
        key = _checked(stops)
        automaton = _IN_USE.get(key)
        if automaton is None:
            automaton = _IN_USE[key] = cls(key)
        return automaton

    def _insert(self, index: int, stop: str) -> None:
        node, edges = 0, self.edges
        for length, char in enumerate(stop, start=1):
            child = edges[node].get(char)
            if child is None:
                child = len(edges)
                edges[node][char] = child
                edges.append({})
                self.depth[child] = length
                self.stop_of[child] = index
            node = child
        self.ending[node] = index

    def _link(self) -> None:
        """Set suffix links level by level, as those of longer nodes depend on those of shorter ones."""
        edges, fail, ending = self.edges, self.fail, self.ending
        level = list(edges[0].values())
        while level:
            deeper: list[int] = []
            for node in level:
                if ending[node] < 0:
                    ending[node] = ending[fail[node]]
                for char, child in edges[node].items():
                    suffix = fail[node]
                    while suffix and char not in edges[suffix]:
                        suffix = fail[suffix]
                    fail[child] = edges[suffix].get(char, 0)
                    deeper.append(child)
            level = deeper


_IN_USE: weakref.WeakValueDictionary[tuple[str, ...], StopAutomaton] = weakref.WeakValueDictionary()


class StopChecker:
    """Returns one completion's streamed text up to the first stop string.

    include_stop_str_in_output: return the matched stop string, too.
    """

    def __init__(self, automaton: StopAutomaton, include_stop_str_in_output: bool = False) -> None:
        self._automaton = automaton
        self._include = include_stop_str_in_output
        self._state = 0
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._matched

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text; return (text that is safe to show, matched stop or None).

        Text after a match is dropped, and later pushes return ("", the same match).
        """
        if self._matched is not None:
            return "", self._matched
        automaton = self._automaton
        edges, fail, ending, depth = automaton.edges, automaton.fail, automaton.ending, automaton.depth
        before = state = self._state
        for position, char in enumerate(text):
            while (following := edges[state].get(char)) is None and state:
                state = fail[state]
            state = following if following is not None else 0
            if ending[state] >= 0:
                self._matched = automaton.stops[ending[state]]
                self._state = 0
                keep = 0 if self._include else len(self._matched)
                return self._released(before, text, depth[before] + position + 1 - keep), self._matched
        self._state = state
        return self._released(before, text, depth[before] + len(text) - depth[state]), None

    def flush(self) -> str:
        """The text that is held back, after the last piece."""
        held = self._held(self._state)
        self._state = 0
        return held

    def _held(self, state: int) -> str:
        automaton = self._automaton
        return automaton.stops[automaton.stop_of[state]][: automaton.depth[state]] if state else ""

    def _released(self, before: int, text: str, count: int) -> str:
        """The first `count` characters of what was held at node `before` followed by `text`."""
        held = self._automaton.depth[before]
        if count <= held:
            # Slicing the stop itself keeps a long held suffix from being copied at every push.
            return self._automaton.stops[self._automaton.stop_of[before]][:count] if count else ""
        return self._held(before) + text[: count - held]


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stops, str) or not isinstance(stops, Sequence):
        raise InvalidParams("stop must be a list of strings.")
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidParams(f"stop holds {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed.")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InvalidParams("stop must hold non-empty strings only.")
    if sum(map(len, stops)) > MAX_STOP_CHARS:
        raise InvalidParams(f"the stop strings are longer than {MAX_STOP_CHARS} characters together.")
    return tuple(stops)
