"""What templates may use, as tables: filters, tests, methods, attributes, and what each costs.

A name that is in no table does not exist for a template. Most entries pay for reading their arguments, weighed with
all they hold; `shallow` ones look at the first argument's own items only. A `price` function says what an entry costs
beyond that, above all how long its result will be, and refuses arguments of types it cannot judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import chain
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, ignore_case, make_attrgetter
from jinja2.runtime import LoopContext, Macro
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Namespace

from headrace.text.templates.budget import (
    FUNCTION_UNITS,
    Budget,
    TemplateLimitExceeded,
    active_budget,
    check_key,
    is_iterator,
    size_of,
)

Price = Callable[..., None]


@dataclass(frozen=True)
class Rule:
    """How one filter, test or method is paid for."""

    price: Price | None = None
    """Called with (budget, *arguments) before the work."""
    shallow: bool = False
    """Looks only at the first argument's own items, not into them."""
    drains: bool = False
    """Consumes its first argument, which may be lazy; it is made a list first so that it can be weighed."""


# ---- Prices ----


def _numbers_only(budget: Budget, *values: Any) -> None:
    # `%` and `*` on strings format and repeat; rules that calculate must not see any.
    if not all(isinstance(value, (int, float)) for value in values):
        raise TypeError("a number is needed here")


def _round(budget: Budget, value: Any, precision: Any = 0, method: str = "common") -> None:
    _numbers_only(budget, value, precision)
    if abs(precision) > 300:
        raise TemplateLimitExceeded("it calculates with numbers that are too large")


def _sum(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> None:
    _numbers_only(budget, start)


def _width(budget: Budget, text: Any, width: Any = 80, *fill: Any) -> None:
    _numbers_only(budget, width)
    budget.spend_making(budget.total(text) + int(width))


def _indent(budget: Budget, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    each = len(width) if isinstance(width, str) else width
    _numbers_only(budget, each)
    # `splitlines` knows about ten kinds of line ends, so the lines are counted by it.
    budget.spend_making(len(text) + (len(text.splitlines()) + 2) * int(each))


def _fill(budget: Budget, values: Any, count: Any, fill: Any = None) -> None:
    _numbers_only(budget, count)
    budget.spend_making(size_of(values) + int(count))


def _join(budget: Budget, values: Any, separator: Any = "", attribute: Any = None) -> None:
    budget.spend_making(budget.total(values) + size_of(values) * budget.total(separator))


def _join_method(budget: Budget, separator: str, values: Any) -> None:
    _join(budget, values, separator)


def _replace(budget: Budget, text: Any, old: Any, new: Any, count: Any = None) -> None:
    text, old, new = str(text), str(old), str(new)
    found = text.count(old)
    if count is not None:
        _numbers_only(budget, count)
        found = min(found, int(count)) if count >= 0 else found
    budget.spend_making(len(text) + found * max(len(new) - len(old), 0))


def _product(budget: Budget, text: Any, needle: Any = None, *rest: Any) -> None:
    """Searches from the right, and strips of a set of characters, compare every character with every character."""
    budget.spend_reading(len(text) * len(needle) if isinstance(text, str) and isinstance(needle, str) else 0)


_CONVERSION = re.compile(r"[%)][-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


def price_of_printf(budget: Budget, pattern: str, values: Any) -> None:
    """Pay for `pattern % values`: any conversion may print all values, at the widths it names."""
    conversions = pattern.count("%")
    budget.spend(4 * (conversions + pattern.count(")")))
    total = len(pattern) + conversions * budget.total(values)
    for match in _CONVERSION.finditer(pattern):
        for width in match.groups():
            if width == "*":
                raise TemplateLimitExceeded("it takes the width of a format from a value")
            if width:
                total += int(width[:12])
    budget.spend_making(total)


def _format(budget: Budget, pattern: Any, *values: Any, **named: Any) -> None:
    price_of_printf(budget, str(pattern), [*values, *named.values()])


def _tojson(
    budget: Budget, value: Any, ensure_ascii: Any = False, indent: Any = None, *rest: Any, **named: Any
) -> None:
    weight = budget.weigh(value)
    each = len(indent) if isinstance(indent, str) else indent or 0
    _numbers_only(budget, each)
    separators = named.get("separators") or (rest[0] if rest else None) or ()
    per_node = int(each) * weight.depth + sum(map(len, separators))
    budget.spend(weight.nodes)
    budget.spend_making(weight.total + weight.nodes * per_node)


# ---- Filters and tests ----


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own `tojson` escapes for HTML; models read plain JSON.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@pass_environment
def _unique(
    environment: Environment, values: Any, case_sensitive: bool = False, attribute: Any = None
) -> Iterator[Any]:
    """Jinja's `unique`, for keys that cannot be made to collide."""
    key_of = make_attrgetter(environment, attribute, postprocess=None if case_sensitive else ignore_case)
    seen = set()
    for value in values:
        key = check_key(key_of(value))
        if key not in seen:
            seen.add(key)
            yield value


_DEEP = Rule()
_SHALLOW = Rule(shallow=True)


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_FILTER_RULES: dict[str, Rule] = {
    **_each("abs capitalize dictsort e escape float forceescape int lower safe string title truncate", _DEEP),
    **_each("upper urlencode wordcount", _DEEP),
    **_each("attr count d default first items last length list map reject rejectattr", _SHALLOW),
    **_each("reverse select selectattr", _SHALLOW),
    **_each("groupby max min sort unique", Rule(drains=True)),
    "batch": Rule(_fill, shallow=True),
    "center": Rule(_width),
    "format": Rule(_format),
    "indent": Rule(_indent),
    "join": Rule(_join, drains=True),
    "replace": Rule(_replace),
    "round": Rule(_round),
    "slice": Rule(_fill, shallow=True),
    "sum": Rule(_sum, drains=True),
    "tojson": Rule(_tojson),
    "trim": Rule(_product),
}

_TEST_RULES: dict[str, Rule] = {
    **_each("boolean callable defined escaped false filter float integer iterable mapping none", _SHALLOW),
    **_each("number sameas sequence string test true undefined", _SHALLOW),
    **_each("== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in lower upper", _DEEP),
    **_each("divisibleby even odd", Rule(_numbers_only)),
}


def paid_filters() -> dict[str, Callable[..., Any]]:
    """The filters of a template environment, each paying from the active budget."""
    functions: dict[str, Callable[..., Any]] = {**FILTERS, "tojson": _to_json, "unique": _unique}
    return {name: _paid(functions[name], rule) for name, rule in _FILTER_RULES.items()}


def paid_tests() -> dict[str, Callable[..., Any]]:
    """The tests (`is …`) of a template environment, each paying from the active budget."""
    functions: dict[str, Any] = TESTS
    return {name: _paid(functions[name], rule) for name, rule in _TEST_RULES.items()}


def _paid(function: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
    # Jinja hands some functions its context first; the mark is an attribute, which `wraps` copies.
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def paid(*args: Any, **named: Any) -> Any:
        budget = active_budget()
        values = list(args[first:])
        if rule.drains and values and is_iterator(values[0]):
            values[0] = budget.drain(values[0])
        budget.spend(FUNCTION_UNITS)
        if rule.shallow:
            budget.spend_reading(size_of(values[0]))
        else:
            for value in chain(values, named.values()):
                budget.spend_reading(budget.total(value))
        if rule.price is not None:
            rule.price(budget, *values, **named)
        return settled(budget, function(*args[:first], *values, **named))

    return paid


def settled(budget: Budget, result: Any) -> Any:
    """A result that a template may keep: not too large, and nothing left to be computed.

    Lazy results become iterators over a list. They stay iterators because templates can tell the difference, and
    stop being lazy because chains of lazy values would compute (and be freed) by recursion.
    """
    kind = type(result)
    if kind is bool or kind is dict:
        return result
    if kind is list or kind is tuple:
        # Lists are paid for once they are there, because nobody knows before how many parts a text has.
        budget.spend(len(result) // 2)
    elif isinstance(result, str):
        budget.check_size(len(result))
    elif isinstance(result, int):
        budget.check_bits(result.bit_length())
    elif is_iterator(result):
        return iter(budget.drain(result))
    return result


# ---- Attributes and methods ----


class PlainNamespace(Namespace):
    """A namespace that stays one: no names for Python's internals, and nothing of its contents when printed."""

    def __init__(*args: Any, **named: Any) -> None:
        contents = plain_dict(*args[1:], **named)
        for name in contents:
            _check_name(name)
        Namespace.__init__(args[0], contents)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def plain_dict(*pairs: Any, **named: Any) -> dict[Any, Any]:
    """`dict(…)` for templates: the keys are checked before they meet in a table."""
    for each in pairs:
        if not isinstance(each, dict):
            for pair in each:
                check_key(pair[0])
    return dict(*pairs, **named)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError("names of a namespace are strings that do not begin with an underscore")


STRING_METHODS: Mapping[str, Rule] = {
    **_each("isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable", _DEEP),
    **_each("isspace istitle isupper capitalize casefold lower swapcase title upper", _DEEP),
    **_each("count endswith find index startswith removeprefix removesuffix", _DEEP),
    **_each("partition split splitlines", _DEEP),
    **_each("lstrip rstrip strip rfind rindex rpartition rsplit", Rule(_product)),
    **_each("center ljust rjust zfill", Rule(_width)),
    "format": _SHALLOW,  # its fields pay one by one
    "format_map": _SHALLOW,
    "join": Rule(_join_method),
    "replace": Rule(_replace),
}

_READABLE: Mapping[type, str] = {
    str: " ".join(STRING_METHODS),
    dict: "copy get items keys values",
    list: "copy count index",
    tuple: "count index grouper list",  # the latter two are the fields of a `groupby` pair
    LoopContext: "index index0 revindex revindex0 first last length previtem nextitem depth depth0 cycle changed",
    Macro: "name arguments caller catch_kwargs catch_varargs",
    Cycler: "next current reset",
}


@lru_cache(maxsize=256)
def _readable(kind: type) -> frozenset[str]:
    return frozenset(
        name for base, names in _READABLE.items() if issubclass(kind, base) for name in names.split()
    )


def may_read(value: Any, attribute: str) -> bool:
    """True where a template may read this attribute of this value."""
    kind: type = type(value)
    if kind is PlainNamespace:
        return not attribute.startswith("_")
    return attribute in _readable(kind)
