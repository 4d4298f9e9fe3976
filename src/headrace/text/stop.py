"""Stop strings, found in streamed text wherever the pieces are cut, in linear time.

The match rule looks at the text one character at a time, so it cannot depend on how the text is cut: the match that
*ends* first wins (generation may stop there without waiting for more), and of several that end at the same
character the longest wins (it leaves the least text behind it).

The matcher is an Aho-Corasick automaton (Aho and Corasick, CACM 18(6), 1975). The depth of its state is the length of
the longest suffix that could still become a stop, which is exactly what must be held back. That suffix is also the
beginning of some stop string, so it is never stored: hostile stops cost no more than ordinary ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.errors import InvalidParams

MAX_STOPS = 64
"""Most stop strings of one request."""

MAX_STOP_CHARS = 8192
"""Most characters of all stop strings of one request together."""


class StopChecker:
    """Releases streamed text up to the first stop string.

    stops: up to `MAX_STOPS` non-empty strings, `MAX_STOP_CHARS` characters together.
    include_stop_str_in_output: let the matched stop string itself through.

    Raises InvalidParams for stops that are empty, not strings, too many or too long.
    """

    def __init__(self, stops: Sequence[str] = (), include_stop_str_in_output: bool = False) -> None:
        self._stops = _checked(stops)
        self._include = include_stop_str_in_output
        self._state = 0
        self._matched: str | None = None
        # Node 0 is the empty prefix. For every node: its edges, the node of its longest proper suffix, its length,
        # a stop that begins with it, and the longest stop that ends with it (-1: none).
        self._edges: list[dict[str, int]] = [{}]
        self._fail: list[int] = [0]
        self._depth: list[int] = [0]
        self._stop_of: list[int] = [0]
        self._ending: list[int] = [-1]
        for index, stop in enumerate(self._stops):
            self._insert(index, stop)
        self._link()

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
        edges, fail, ending = self._edges, self._fail, self._ending
        before = state = self._state
        for position, char in enumerate(text):
            while (following := edges[state].get(char)) is None and state:
                state = fail[state]
            state = following if following is not None else 0
            if ending[state] >= 0:
                self._matched = self._stops[ending[state]]
                self._state = 0
                keep = 0 if self._include else len(self._matched)
                return self._released(before, text, self._depth[before] + position + 1 - keep), self._matched
        self._state = state
        return self._released(before, text, self._depth[before] + len(text) - self._depth[state]), None

    def flush(self) -> str:
        """The text still held back, once it is known that no more text will come."""
        held = self._held(self._state)
        self._state = 0
        return held

    def _held(self, state: int) -> str:
        return self._stops[self._stop_of[state]][: self._depth[state]] if state else ""

    def _released(self, before: int, text: str, count: int) -> str:
        """The first `count` characters of what was held at node `before` followed by `text`."""
        held = self._depth[before]
        if count <= held:
            # Slicing the stop itself keeps a long held suffix from being copied at every push.
            return self._stops[self._stop_of[before]][:count] if count else ""
        return self._held(before) + text[: count - held]

    def _insert(self, index: int, stop: str) -> None:
        node = 0
        for char in stop:
            child = self._edges[node].get(char)
            if child is None:
                child = len(self._edges)
                self._edges[node][char] = child
                self._edges.append({})
                self._fail.append(0)
                self._depth.append(self._depth[node] + 1)
                self._stop_of.append(index)
                self._ending.append(-1)
            node = child
        self._ending[node] = index

    def _link(self) -> None:
        """Set suffix links breadth first, so that shorter nodes are ready before longer ones ask for them."""
        queue = deque(self._edges[0].values())
        while queue:
            node = queue.popleft()
            if self._ending[node] < 0:
                self._ending[node] = self._ending[self._fail[node]]
            for char, child in self._edges[node].items():
                suffix = self._fail[node]
                while suffix and char not in self._edges[suffix]:
                    suffix = self._fail[suffix]
                self._fail[child] = self._edges[suffix].get(char, 0)
                queue.append(child)


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stops, str) or not isinstance(stops, Sequence):
        raise InvalidParams("stop must be a list of strings.")
    if len(stops) > MAX_STOPS:
        raise InvalidParams(f"stop holds {len(stops)} strings; at most {MAX_STOPS} are allowed.")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InvalidParams("stop must hold non-empty strings only.")
    if sum(map(len, stops)) > MAX_STOP_CHARS:
        raise InvalidParams(f"the stop strings are longer than {MAX_STOP_CHARS} characters together.")
    return tuple(stops)
