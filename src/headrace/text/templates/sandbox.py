"""The Jinja environment that chat templates render in.

A chat template is a program that comes with a model. Jinja's immutable sandbox keeps it from Python's
internals and from changing its input. This module adds caps on processor time, on the size of each value, and on all
values of a rendering together. They hold wherever a value is made: Jinja has hooks for operators, filters, calls and
output, and `_CodeGenerator` adds those for blocks (turns of loops, calls of macros), literals and slices.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, wraps
from itertools import chain
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Namespace
from markupsafe import escape

from headrace.text.templates.features import GenerationTag, template_globals


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one template and one rendering; the defaults leave published templates a factor of ten or more."""

    source_chars: int = 128 * 2**10
    """Longest template."""
    cpu_s: float = 1.5
    """Processor time of one rendering."""
    value_chars: int = 4 * 2**20
    """Characters and items of any one value, the prompt included."""
    all_chars: int = 64 * 2**20
    """Characters and items of all values that one rendering makes."""


class TemplateLimitExceeded(Exception):
    """A template asked for more than its limits; the message says which."""


@dataclass
class _Rendering:
    deadline: float
    """In seconds of `time.thread_time`."""
    chars_left: int
    weights: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """Weights of containers by id; holding the container keeps its id from being used again."""


_rendering: ContextVar[_Rendering] = ContextVar("headrace_rendering")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja with `features`, within limits; one environment may render in several threads."""

    intercepted_binops = frozenset({"+", "-", "*", "//", "**", "%"})

    def __init__(self, limits: TemplateLimits, now: Callable[[], datetime]) -> None:
        self.limits = limits
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            finalize=_finalize,
            extensions=[LoopControlExtension, GenerationTag],
        )
        self.code_generator_class = _CodeGenerator
        escaped = {
            name: lambda value: str(escape(self.text(value))) for name in ("e", "escape", "forceescape")
        }
        own: dict[str, Any] = {
            **escaped,
            "format": lambda pattern, *args, **named: self._printf(str(pattern), named or args),
            "join": self._join,
            "safe": self.text,
            "string": self.text,
            "tojson": self._tojson,
        }
        self.filters: dict[str, Any] = {
            name: self._capped(name, own.get(name, function))
            for name, function in self.filters.items()
            if name not in _LEFT_OUT
        }
        self.tests["divisibleby"] = lambda value, by: self._arithmetic("%", value, by) == 0
        self.tests["even"] = lambda value: self._arithmetic("%", value, 2) == 0
        self.tests["odd"] = lambda value: self._arithmetic("%", value, 2) == 1
        del self.globals["lipsum"]
        self.globals |= template_globals(now)

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Give the block the time and the characters of one rendering."""
        token = _rendering.set(_Rendering(time.thread_time() + self.limits.cpu_s, self.limits.all_chars))
        try:
            yield
        finally:
            _rendering.reset(token)

    # ---- Caps ----

    def tick(self) -> None:
        """Stop a rendering that takes too long. Compiled templates call this at the start of every block."""
        if time.thread_time() > _rendering.get().deadline:
            raise TemplateLimitExceeded("it takes too long")

    def charge(self, count: int) -> None:
        """Count the characters or items of a value, before it is made where its size can be predicted."""
        rendering = _rendering.get()
        rendering.chars_left -= count
        if count > self.limits.value_chars or rendering.chars_left < 0:
            raise TemplateLimitExceeded("it makes values that are too large")

    def weight(self, value: Any) -> int:
        """Characters and items of a value. What occurs twice counts twice: it is printed, compared and hashed twice."""
        if not isinstance(value, (list, tuple, dict, set)):
            return len(value) if isinstance(value, str) else 1
        weights = _rendering.get().weights
        if id(value) not in weights:
            parts = chain.from_iterable(value.items()) if isinstance(value, dict) else value
            weight = 1 + sum(map(self.weight, parts))
            if weight > self.limits.value_chars:
                raise TemplateLimitExceeded("it makes values that are too large")
            weights[id(value)] = weight, value
        return weights[id(value)][0]

    def kept(self, value: Any) -> Any:
        """A value that was made, counted. Lazy ones become lists: freeing a long chain of them would recurse."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, (list, tuple, dict, set)):
            self.charge(len(value))
            self.weight(value)
        elif isinstance(value, Iterator):
            return iter(self.kept(list(self._timed(value))))
        return value

    def _timed(self, values: Iterator[Any]) -> Iterator[Any]:
        for index, value in enumerate(values):
            if index % 64 == 0:
                self.tick()
            yield value

    def text(self, value: Any) -> str:
        """`str(value)`."""
        self.charge(self.weight(value))
        text = str(value)
        self.charge(len(text))
        return text

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the pieces that a template, a macro or an operation makes; stop at the limit."""
        parts, left = [], self.limits.value_chars
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise TemplateLimitExceeded("it prints too much")
            parts.append(piece)
        return "".join(parts)

    # ---- Operators, filters and calls ----

    def tilde(self, parts: Iterable[Any]) -> str:
        """The operator `~`."""
        text: str = self.kept(self.concat(map(self.text, parts)))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return self._arithmetic(operator, left, right)
        if operator == "%" and isinstance(left, str):
            return self._printf(left, right)
        if operator == "*":
            value, times = (right, left) if isinstance(left, int) else (left, right)
            if hasattr(value, "__len__") and isinstance(times, int):
                self.charge(self.weight(value) * max(times, 0))
        return self.kept(super().call_binop(context, operator, left, right))

    def _arithmetic(self, operator: str, left: Any, right: Any) -> Any:
        """An operator for numbers; `%` of a string would be a format."""
        bits = [number.bit_length() if isinstance(number, int) else 64 for number in (left, right)]
        result_bits = {"*": sum(bits), "**": bits[0] * abs(right)}.get(operator, 0)
        if isinstance(left, str) or max(*bits, result_bits) > _MAX_BITS:
            raise TemplateLimitExceeded("it calculates with values that are too large, or not numbers")
        return self.binop_table[operator](left, right)

    def _capped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja puts a context before the arguments

        @wraps(function)
        def capped(*args: Any, **named: Any) -> Any:
            self.tick()
            self._check(name, *args[first:], *named.values())
            return self.kept(function(*args, **named))

        return capped

    def _check(self, name: str, value: Any, *rest: Any) -> None:
        """Refuse a filter, or a method of a string, whose arguments ask for too much."""
        sizes = [
            len(each) if isinstance(each, str) else each for each in rest if isinstance(each, (int, str))
        ]
        if name in _SIZED and any(size > _MAX_SIZE for size in sizes):
            raise TemplateLimitExceeded("it makes values that are too large")
        if name == "indent":
            self.charge(len(str(value).splitlines()) * max(4, *sizes, 4))
        elif name == "replace" and len(rest) > 1:
            text, old, new = map(str, (value, *rest[:2]))
            self.charge(len(text) + text.count(old) * len(new))
        elif name in _SEARCHING and rest and len(str(value)) * len(str(rest[0])) > _MAX_COMPARED:
            raise TemplateLimitExceeded("it takes too long")
        elif name == "round" and isinstance(value, str):  # it multiplies
            raise TypeError("round is for numbers")
        elif name == "sum" and any(
            isinstance(each, (list, tuple)) for each in rest
        ):  # it copies for every item
            raise TypeError("sum is for numbers")

    def _join(self, values: Any, separator: Any = "", attribute: Any = None) -> str:
        if attribute is not None:
            values = map(make_attrgetter(self, attribute), values)
        between = self.text(separator)
        pieces = ((between if index else "") + self.text(each) for index, each in enumerate(values))
        return self.concat(pieces)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own `tojson` escapes for HTML; models read plain JSON.
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return self.concat(encoder.iterencode(value))

    def _printf(self, pattern: str, values: Any) -> str:
        """`pattern % values`: any conversion may print all values, at the width that it names."""
        self.charge(len(pattern) + pattern.count("%") * self.weight(values))
        for widths in _CONVERSION.findall(pattern):
            if "*" in widths:
                raise TemplateLimitExceeded("it takes the width of a format from a value")
            self.charge(sum(int(digits[:12]) for digits in widths if digits))
        text: str = self.kept(pattern % values)
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        __self.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join" and len(args) == 1:
                return __self.kept(__self._join(args[0], owner))
            __self._check(__obj.__name__, owner, *args)
        elif isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs):
            __self.kept((*args, *named.values()))  # becomes a value of its own
        return __self.kept(super().call(__context, __obj, *args, **named))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (
            isinstance(obj, _READABLE) and attr not in _HIDDEN and super().is_safe_attribute(obj, attr, value)
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        formatter, pattern = _Formatter(self), str(value.__self__)
        self.charge(8 * (pattern.count("{") + pattern.count("}")))
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(pattern, (), mapping)
        return partial(formatter.format, pattern)


_LEFT_OUT = frozenset({"filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"})
"""Filters of Jinja for web pages and for debugging."""

_SIZED = frozenset({"batch", "center", "indent", "ljust", "rjust", "round", "slice", "tojson", "zfill"})
"""Filters and methods of strings whose arguments, at most `_MAX_SIZE`, say how much is made."""

_MAX_SIZE = 1000

_CONVERSION = re.compile(r"[%)][-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")
"""Width and precision of a conversion of `%`, whether or not it names its value."""

_SEARCHING = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"})
"""Filters and methods of strings that compare every character with every character of their argument."""

_MAX_COMPARED = 2**28
_MAX_BITS = 2048

_READABLE = (str, dict, list, tuple, Namespace, LoopContext, Macro, Cycler)
"""Types with attributes and methods for templates, as far as Jinja's sandbox allows."""

_HIDDEN = frozenset({"encode", "expandtabs", "fromkeys", "maketrans", "translate"})


@pass_context  # so that Jinja does not call it while compiling
def _finalize(context: Context, value: Any) -> str:
    environment: Any = context.environment
    text: str = environment.text(value)
    return text


class _Formatter(SandboxedFormatter):
    """`str.format` that counts each field before it is padded."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        environment: Any = self._env
        widths = sum(int(digits[:12]) for digits in re.findall(r"\d+", format_spec))
        environment.charge(len(environment.text(value)) + len(format_spec) + widths)
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        environment: Any = self._env
        environment.text(value)
        return super().convert_field(value, conversion)


class _CodeGenerator(CodeGenerator):
    """Compiles the hooks that Jinja lacks into templates."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.tilde((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._kept(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._kept(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._kept(super().visit_Dict, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._kept(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _kept(self, visit: Callable[..., None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.kept(")
        visit(node, frame)
        self.write(")")
