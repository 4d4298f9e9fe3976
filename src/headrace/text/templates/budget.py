"""What one rendering of a chat template may cost, counted.

Everything is paid from one purse of units: one unit for every template node executed, one for every
`CHARS_PER_UNIT` characters (or list items) that an operation reads or makes. The price is asked *before* the work is
done. Since no single operation can be large without paying first, the clock only needs a look now and then, and the
purse usually decides alone, whatever the machine and its load.

Values are small trees in principle, but a template can share a subtree (`[x, x]`, again and again) until printing or
comparing the tree takes exponential time. `Budget.weigh` counts a value as it would be printed, remembers the weight
of every container (nothing can change a container while a template runs), and refuses those that are too heavy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import length_hint
from typing import Any, NamedTuple

CHARS_PER_UNIT = 16

FUNCTION_UNITS = 8
"""What a call of a filter, test or function costs by itself; a unit is about a quarter of a microsecond of Python."""


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one template and one rendering; the defaults leave published templates a factor of ten or more."""

    source_chars: int = 256 * 2**10
    """Longest template."""
    tokens: int = 24 * 2**10
    """Most Jinja tokens of a template: compiling takes time for each, whatever its length."""
    units: int = 3 * 2**20
    """Work of one rendering."""
    cpu_s: float = 1.5
    """Processor time of one rendering, for what the units do not foresee."""
    value_weight: int = 4 * 2**20
    """Characters and items of any one value: the messages, a string, a list with all it holds."""
    output_chars: int = 8 * 2**20
    """Characters printed, those of macros counted again when their result is printed."""
    nesting: int = 64
    """How deep values and calls may nest."""
    int_bits: int = 2048
    """Size of whole numbers."""


class TemplateLimitExceeded(Exception):
    """A template asked for more than its limits; the message says which."""


class Weight(NamedTuple):
    """Size of a value."""

    total: int
    """Characters and items, shared parts counted as often as they would be printed."""
    nodes: int
    """Items and containers, counted in the same way."""
    depth: int
    """Levels of containers."""


class Budget:
    """The purse of one rendering."""

    def __init__(self, limits: TemplateLimits) -> None:
        self.limits = limits
        self._level = 0
        self._left = limits.units
        self._printed = 0
        self._look_at_clock_below = limits.units
        self._deadline = time.thread_time() + limits.cpu_s
        # By identity; holding the object keeps its identity from being given to another.
        self._weights: dict[int, tuple[Any, Weight]] = {}

    def spend(self, units: int) -> None:
        """Pay for work that is about to be done."""
        self._left -= units
        if self._left < self._look_at_clock_below:
            if self._left < 0:
                raise TemplateLimitExceeded("it takes too many steps")
            if time.thread_time() > self._deadline:
                raise TemplateLimitExceeded("it takes too long")
            self._look_at_clock_below = self._left - 2048

    def spend_reading(self, count: int) -> None:
        """Pay for looking at so many characters or items."""
        self.spend(1 + count // CHARS_PER_UNIT)

    def spend_making(self, count: int) -> None:
        """Pay for a value of so many characters or items."""
        self.check_size(count)
        self.spend(1 + count // CHARS_PER_UNIT)

    def spend_printing(self, count: int) -> None:
        """Pay for printed characters."""
        self._printed += count
        if self._printed > self.limits.output_chars:
            raise TemplateLimitExceeded("it prints too much")
        self.spend(1 + count // CHARS_PER_UNIT)

    def check_size(self, count: int) -> None:
        """Refuse a value of too many characters or items."""
        if count > self.limits.value_weight:
            raise TemplateLimitExceeded("it makes a value that is too large")

    def check_bits(self, bits: int) -> None:
        """Refuse a number of too many digits."""
        if bits > self.limits.int_bits:
            raise TemplateLimitExceeded("it calculates with numbers that are too large")

    def total(self, value: Any) -> int:
        """`weigh(value).total`, the part that is wanted most often."""
        if type(value) is str:
            return 1 + len(value)
        return self.weigh(value).total

    def weigh(self, value: Any) -> Weight:
        """Size of a value; raises TemplateLimitExceeded where it is too large or nested too deep."""
        weight = self._weigh(value, self.limits.nesting)
        self.check_size(weight.total)
        return weight

    def enter_call(self) -> None:
        """One level further into calls; `leave_call` undoes it."""
        self._level += 1
        if self._level > self.limits.nesting:
            raise TemplateLimitExceeded("it calls macros within macros too deep")

    def leave_call(self) -> None:
        """Back from a call."""
        self._level -= 1

    def drain(self, values: Iterable[Any]) -> list[Any]:
        """A list of lazily made values, paid for one by one."""
        drained = []
        for value in values:
            self.spend(1)
            drained.append(value)
        return drained

    def _weigh(self, value: Any, levels: int) -> Weight:
        if isinstance(value, str):
            return Weight(1 + len(value), 1, 0)
        if isinstance(value, int):
            self.check_bits(value.bit_length())
            return _SCALAR
        items = _items_of(value)
        if items is None:
            # Opaque to printing and comparing, but a range or an iterator can still be searched.
            searched = isinstance(value, range) or is_iterator(value)
            return Weight(1 + (length_hint(value, 1) if searched else 1), 1, 0)
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        if not levels:
            raise TemplateLimitExceeded("it nests values too deep")
        self.spend(1 + len(items))
        total, nodes, depth = 1, 1 + len(items), 0
        for item in items:
            kind = type(item)
            if kind is str:
                total += 1 + len(item)
            elif kind in _SCALARS:
                total += _SCALAR.total
            else:
                inner = self._weigh(item, levels - 1)
                total += inner.total
                nodes += inner.nodes - 1
                depth = max(depth, inner.depth)
        if depth >= self.limits.nesting:
            raise TemplateLimitExceeded("it nests values too deep")
        weight = Weight(total, nodes, depth + 1)
        self._weights[id(value)] = (value, weight)
        return weight


_SCALAR = Weight(24, 1, 0)
"""A number: longer than most, so that lists of numbers are not underpaid."""

_SCALARS = frozenset({bool, float, type(None)})

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def _items_of(value: Any) -> list[Any] | tuple[Any, ...] | None:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, _VIEWS):
        return list(value)  # type: ignore[call-overload, no-any-return]  # the views have no public types
    return None


def check_key(value: Any) -> Any:
    """A value that may be a dict's key, or refused: one whose hash could be made to collide with many others'.

    Hashes of strings are secret; those of tuples and of numbers beyond 60 bits can be computed, and a table full of
    equal hashes takes quadratic time.
    """
    if isinstance(value, (tuple, range)) or (isinstance(value, int) and value.bit_length() > 60):
        raise TemplateLimitExceeded("it uses a key that is neither a string nor a small number")
    return value


def is_iterator(value: Any) -> bool:
    """True for values that are made while they are read, once."""
    return hasattr(type(value), "__next__")


def size_of(value: Any) -> int:
    """Length where there is one, else 1."""
    return len(value) if hasattr(type(value), "__len__") else 1


_active: ContextVar[Budget | None] = ContextVar("headrace_template_budget", default=None)


def active_budget() -> Budget:
    """The budget of the rendering that runs in this context.

    Raises TemplateLimitExceeded outside a rendering, so that nothing of a template runs while it is compiled.
    """
    budget = _active.get()
    if budget is None:
        raise TemplateLimitExceeded("it does work outside a rendering")
    return budget


@contextmanager
def spending(limits: TemplateLimits) -> Iterator[Budget]:
    """A fresh budget for the rendering inside the block."""
    budget = Budget(limits)
    token = _active.set(budget)
    try:
        yield budget
    finally:
        _active.reset(token)
