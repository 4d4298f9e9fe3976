"""Regular expressions of checkpoints' configs, matched in time linear in the name.

A config names modules by patterns such as `re:.*self_attn\\.(q|k)_proj$`. Python's own engine backtracks, so that a
hostile pattern could run for years; here a pattern is a finite automaton (Thompson 1968), whose size is bounded. Its
deterministic form is made as far as names need it: those of a mixture's matrices are tens of thousands, and alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable

from headrace.errors import UnsupportedModel

MAX_LENGTH = 500
"""Characters of a pattern."""
MAX_STATES = 1000
"""Of one pattern."""
MAX_STATES_OF_CONFIG = 20_000
MAX_DEPTH = 20
_KEPT = 64
"""Steps of a pattern's automaton that are remembered, and the states in what they lead to, for each of its states."""
PATTERN = "re:"
"""What a pattern in a list of names begins with."""

_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdigit,
    "D": lambda c: not c.isdigit(),
    "w": lambda c: c.isalnum() or c == "_",
    "W": lambda c: not (c.isalnum() or c == "_"),
    "s": str.isspace,
    "S": lambda c: not c.isspace(),
}

_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` matches the beginning of `name`, as `re.match` has it.

    Raises UnsupportedModel for a pattern that is not well-formed or too large, and for one that looks around or back.
    """
    return _compile(pattern).matches(name)


class ModuleNames:
    """A config's list of modules, `module in names`: their names, or PATTERN and a pattern.

    patterns: without PATTERN.
    """

    def __init__(self, listed: Iterable[str]) -> None:
        listed = tuple(listed)
        self._exact = frozenset(name for name in listed if not name.startswith(PATTERN))
        self.patterns = tuple(name.removeprefix(PATTERN) for name in listed if name.startswith(PATTERN))

    def __contains__(self, module: str) -> bool:
        return module in self._exact or any(matches(pattern, module) for pattern in self.patterns)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise UnsupportedModel for patterns that `matches` would refuse, and for too many of them."""
    states = 0
    for pattern in patterns:
        states += len(_compile(pattern).tests)
        if states > MAX_STATES_OF_CONFIG:
            raise UnsupportedModel("the patterns in the quantization config are too many, or too large")


@functools.lru_cache(maxsize=4096)
def _compile(pattern: str) -> _Automaton:
    if len(pattern) > MAX_LENGTH:
        raise UnsupportedModel(
            f"the pattern {pattern!r:.80} in the quantization config is longer than {MAX_LENGTH}"
        )
    return _Parser(pattern).automaton()


_DONE = frozenset((-1,))
"""In place of states: the pattern has matched."""

Fragment = tuple[int, int]
"""First and last state of a part of the automaton; the last one has no way out yet."""


class _Automaton:
    """States with either a test of one character and a successor, or successors that cost no character."""

    def __init__(self) -> None:
        self.tests: list[Callable[[str], bool] | None] = []
        self.next: list[list[int]] = []
        self.anchors: list[str] = []  # "^" or "$" where the state may only be passed there
        self.start = self.end = 0
        self._steps: dict[tuple[frozenset[int], str, bool], frozenset[int]] = {}
        self._room = 0

    def state(self, test: Callable[[str], bool] | None = None, anchor: str = "") -> int:
        if len(self.tests) >= MAX_STATES:
            raise OverflowError
        self.tests.append(test)
        self.next.append([])
        self.anchors.append(anchor)
        return len(self.tests) - 1

    def matches(self, name: str) -> bool:
        states = frozenset((self.start,))
        for at, character in enumerate((*name, "")):
            step = (states, character, at == 0)
            found = self._steps.get(step)
            if found is None:
                found = self._remember(step, self._after(states, character, at))
            if found is _DONE:
                return True
            if not found:
                break
            states = found
        return False

    def _after(self, states: Collection[int], character: str, at: int) -> frozenset[int]:
        """The states after a character, "" for the end of the name; _DONE where the pattern has matched before it."""
        active = self._closure(states, at_start=at == 0, at_end=not character)
        if self.end in active:
            return _DONE
        return frozenset(
            after
            for state in active
            if character and (test := self.tests[state]) is not None and test(character)
            for after in self.next[state]
        )

    def _remember(self, step: tuple[frozenset[int], str, bool], found: frozenset[int]) -> frozenset[int]:
        if self._room < 0:
            self._steps.clear()
            self._room = _KEPT * len(self.tests)
        self._room -= 1 + len(found)
        self._steps[step] = found
        return found

    def _closure(self, states: Collection[int], *, at_start: bool, at_end: bool) -> set[int]:
        """The states that are reached from `states` without a character."""
        found: set[int] = set()
        open_ = list(states)
        while open_:
            state = open_.pop()
            anchor = self.anchors[state]
            if state in found or (anchor == "^" and not at_start) or (anchor == "$" and not at_end):
                continue
            found.add(state)
            if self.tests[state] is None:
                open_.extend(self.next[state])
        return found


class _Parser:
    """alternatives := sequence ("|" sequence)*; sequence := (atom repeat?)*"""

    def __init__(self, pattern: str) -> None:
        self._text, self._at = pattern, 0
        self._made = _Automaton()

    def automaton(self) -> _Automaton:
        try:
            start, end = self._alternatives(0)
        except OverflowError:
            raise self._refused("is too large") from None
        if self._at < len(self._text):
            raise self._refused("is not well-formed")
        self._made.start, self._made.end = start, end
        return self._made

    def _alternatives(self, depth: int) -> Fragment:
        if depth > MAX_DEPTH:
            raise self._refused("is nested too deeply")
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        if len(branches) == 1:
            return branches[0]
        start, end = self._made.state(), self._made.state()
        for first, last in branches:
            self._made.next[start].append(first)
            self._made.next[last].append(end)
        return start, end

    def _sequence(self, depth: int) -> Fragment:
        start = end = self._made.state()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            first, last = self._repeated(depth)
            self._made.next[end].append(first)
            end = last
        return start, end

    def _repeated(self, depth: int) -> Fragment:
        begin = self._at
        part = self._atom(depth)
        after = self._at
        bounds = self._bounds()
        if bounds is None:
            return part
        self._take("?")  # lazy repeats match the same names
        resume = self._at
        low, high = bounds
        start = end = self._made.state()
        for number in range(max(low, 1 if high is None else high)):
            if number:
                self._at = begin  # another copy of the atom
                part = self._atom(depth)
                assert self._at == after
            first, last = part
            self._made.next[end].append(first)
            done = self._made.state()
            self._made.next[last].append(done)
            if number >= low:
                self._made.next[end].append(done)
            if high is None and number == max(low, 1) - 1:
                self._made.next[last].append(first)
            end = done
        self._at = resume
        return start, end

    def _bounds(self) -> tuple[int, int | None] | None:
        """(least, most) repeats, most None: any number; None: exactly once."""
        for sign in _REPEATS:
            if self._take(sign):
                return _REPEATS[sign]
        if not self._take("{"):
            return None
        text = self._until("}")
        low, comma, high = text.partition(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in (low, high or "0")):
            raise self._refused("is not well-formed")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            raise self._refused("is not well-formed")
        return least, most

    def _atom(self, depth: int) -> Fragment:
        sign = self._text[self._at]
        self._at += 1
        if sign == "(":
            if self._take("?") and not self._take(":"):
                raise self._refused("holds (? without a colon after it, which is not supported")
            inner = self._alternatives(depth + 1)
            if not self._take(")"):
                raise self._refused("is not well-formed")
            return inner
        if sign in "*+?{":
            raise self._refused("is not well-formed")
        if sign in "^$":
            one = self._made.state(anchor=sign)
            return one, one
        test = (
            self._set()
            if sign == "["
            else self._escape()
            if sign == "\\"
            else _any
            if sign == "."
            else _one(sign)
        )
        first, last = self._made.state(test), self._made.state()
        self._made.next[first].append(last)
        return first, last

    def _escape(self) -> Callable[[str], bool]:
        if self._at >= len(self._text):
            raise self._refused("is not well-formed")
        sign = self._text[self._at]
        self._at += 1
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign.isalnum():
            raise self._refused(f"holds \\{sign}, which is not supported")
        return _one(sign)

    def _set(self) -> Callable[[str], bool]:
        inverted = self._take("^")
        tests: list[Callable[[str], bool]] = []
        first = True
        while first or not self._take("]"):
            if self._at >= len(self._text):
                raise self._refused("is not well-formed")
            sign = self._text[self._at]
            self._at += 1
            first = False
            if sign == "\\":
                tests.append(self._escape())
            elif self._is_range():
                if self._text[self._at + 1] == "\\":
                    raise self._refused("has an escape in a range, which is not supported")
                tests.append(_between(sign, self._text[self._at + 1]))
                self._at += 2
            else:
                tests.append(_one(sign))
        return lambda c: any(test(c) for test in tests) is not inverted

    def _is_range(self) -> bool:
        """A hyphen and the end of a range come next."""
        return self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in (
            "",
            "]",
        )

    def _take(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) if found else 0
        return found

    def _until(self, sign: str) -> str:
        end = self._text.find(sign, self._at)
        if end < 0:
            raise self._refused("is not well-formed")
        text, self._at = self._text[self._at : end], end + 1
        return text

    def _refused(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(f"the pattern {self._text!r:.120} in the quantization config {why}")


def _any(character: str) -> bool:
    return character != "\n"


def _one(sign: str) -> Callable[[str], bool]:
    return lambda c: c == sign


def _between(low: str, high: str) -> Callable[[str], bool]:
    return lambda c: low <= c <= high
