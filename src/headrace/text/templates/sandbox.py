"""The Jinja environment that chat templates run in: theirs to compute in, nothing else within reach, all of it paid.

A template arrives with a model, so it is a stranger's program. Jinja's sandbox keeps it from Python's internals; this
module narrows that further to the names in `template_rules`, and adds what the sandbox does not have, a bound on work
(`template_budget`). The bound needs every operation whose cost can exceed a few nodes to ask first. They are:

- blocks: every body (of a loop, macro, branch, the template) begins with a payment for its nodes and literal text,
  which bounds loops and recursion, and text caught in macros;
- operators: Jinja lets the sandbox take over arithmetic; comparisons, `~`, slices and dict keys are compiled into
  calls of this environment (`template_compiler`);
- filters and tests: only the wrapped ones exist;
- calls: one gate, which also bounds depth;
- printing: the environment's `finalize`;
- iterating with a condition, where a loop may turn without running its body.

Compiling is bounded by the number of tokens and runs nothing: constants are not folded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence, Sized
from datetime import datetime
from typing import Any

from jinja2 import pass_context
from jinja2.ext import LoopControlExtension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner

from headrace.text.templates.budget import (
    FUNCTION_UNITS,
    TemplateLimits,
    active_budget,
    check_key,
    is_iterator,
    size_of,
)
from headrace.text.templates.compiler import GenerationTag, PayingCodeGenerator, TokenLimit
from headrace.text.templates.rules import (
    STRING_METHODS,
    PlainNamespace,
    may_read,
    paid_filters,
    paid_tests,
    plain_dict,
    price_of_printf,
    settled,
)

MAX_RANGE = 100_000
"""Longest `range`, as in Jinja's sandbox."""


class RaisedByTemplate(Exception):
    """The template called `raise_exception`; the text is the template's own."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Environment with the globals and filters that chat templates of Hugging Face models expect."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, limits: TemplateLimits, now: Callable[[], datetime]) -> None:
        self.limits = limits
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[LoopControlExtension, GenerationTag, TokenLimit],
        )
        self.code_generator_class = PayingCodeGenerator
        self.filters: dict[str, Any] = paid_filters()
        self.tests: dict[str, Any] = paid_tests()
        self.globals = {
            "cycler": Cycler,
            "dict": plain_dict,
            "joiner": Joiner,
            "namespace": PlainNamespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": lambda format: _strftime(now(), format),
        }

    # ---- Hooks that the compiled template calls ----

    def pay(self, units: int, literal_chars: int) -> None:
        """Begin a block of so many nodes, which prints so much literal text."""
        budget = active_budget()
        budget.spend(units)
        if literal_chars:
            budget.spend_printing(literal_chars)

    def counted(self, values: Any) -> Any:
        """An iterable whose items are paid for whether or not a loop's condition lets them through."""
        budget = active_budget()
        if is_iterator(values):
            return iter(budget.drain(values))
        budget.spend(size_of(values))
        return values

    def compare(self, left: Any, *steps: Any) -> Any:
        """`left op right op right …`, Python's chained comparison; `steps` alternates operators and operands."""
        budget = active_budget()
        result: Any = True
        for index in range(0, len(steps), 2):
            right = steps[index + 1]
            budget.spend_reading(budget.total(left) + budget.total(right))
            result = _COMPARISONS[steps[index]](left, right)
            if not result:
                break
            left = right
        return result

    def tilde(self, parts: Sequence[Any]) -> str:
        """The `~` operator."""
        budget = active_budget()
        budget.spend_making(sum(budget.total(part) for part in parts))
        joined = "".join(map(str, parts))
        budget.check_size(len(joined))
        return joined

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """A slice of a sequence."""
        active_budget().spend_reading(size_of(value))
        return value[start:stop:step]

    def key(self, value: Any) -> Any:
        """A key of a dict that is being made."""
        return check_key(value)

    # ---- Gates of Jinja's sandbox ----

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = active_budget()
        if isinstance(left, int) and isinstance(right, int):
            budget.spend(1)
            bits = left.bit_length()
            # A product has the bits of both, a power those of the base as often as the exponent says.
            grown = {"*": bits + right.bit_length(), "**": bits * abs(right)}.get(operator, bits)
            budget.check_bits(max(grown, right.bit_length()))
        elif operator == "%" and isinstance(left, str):
            price_of_printf(budget, left, right)
        elif operator == "*" and isinstance(left, int) and isinstance(right, Sized):
            budget.spend_making(len(right) * max(left, 0))
        elif operator == "*" and isinstance(right, int) and isinstance(left, Sized):
            budget.spend_making(len(left) * max(right, 0))
        else:
            budget.spend_making(size_of(left) + size_of(right))
        return settled(budget, super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = active_budget()
        budget.spend(FUNCTION_UNITS + (len(args) + len(kwargs)) // 4)
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, LoopContext):
            budget.spend(sum(map(size_of, args)))
        elif not isinstance(__obj, (Macro, BlockReference)):
            # Builtins and globals may look into what they are given; macros hand it on to things that pay.
            values = [*args, *(value for name, value in kwargs.items() if name not in _JINJA_ARGUMENTS)]
            if values and isinstance(owner, str) and __obj.__name__ == "join" and is_iterator(values[0]):
                values[0] = budget.drain(values[0])
                args = (values[0], *args[1:])
            budget.spend_reading(sum(budget.total(value) for value in values))
            if isinstance(owner, str):
                budget.spend_reading(len(owner))
                if (price := STRING_METHODS[__obj.__name__].price) is not None:
                    price(budget, owner, *values)
            elif isinstance(owner, (list, tuple)) or (isinstance(owner, dict) and __obj.__name__ == "copy"):
                budget.spend_reading(budget.total(owner))
        budget.enter_call()
        try:
            return settled(budget, super().call(__context, __obj, *args, **kwargs))
        finally:
            budget.leave_call()

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str):
            # For hashing, and because a failed look-up may print its argument in a message.
            active_budget().weigh(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # A list of what is allowed needs no list of what is not, so Jinja's own checks are not asked.
        return may_read(obj, attr)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text = str(value.__self__)
        # Splitting the pattern takes a turn of a Python loop for every brace.
        active_budget().spend(4 * (text.count("{") + text.count("}")))
        formatter = _PayingFormatter(self)
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(text, (), mapping)
        return lambda *args, **named: formatter.vformat(text, args, named)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}

_JINJA_ARGUMENTS = frozenset({"_loop_vars", "_block_vars", "caller"})
"""Arguments that Jinja adds to calls: whole scopes, which are not the callee's to read."""


@pass_context  # so that Jinja does not call it while compiling
def _finalize(context: Context, value: Any) -> str:
    budget = active_budget()
    budget.spend_reading(budget.total(value))
    text = str(value)
    budget.spend_printing(len(text))
    return text


class _PayingFormatter(SandboxedFormatter):
    """`str.format` where each field pays before it is printed."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        budget = active_budget()
        width = sum(
            int(digits[:12]) for digits in "".join(c if c.isdigit() else " " for c in format_spec).split()
        )
        budget.spend_making(budget.total(value) + len(format_spec) + width)
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        budget = active_budget()
        budget.spend_reading(budget.total(value))
        return super().convert_field(value, conversion)


def _range(*bounds: int) -> range:
    values = range(*bounds)
    # Slicing first, because the length of a huge range does not fit a C integer.
    if len(values[: MAX_RANGE + 1]) > MAX_RANGE:
        raise OverflowError(f"a range holds at most {MAX_RANGE} numbers")
    return values


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message)[:2000])


def _strftime(now: datetime, pattern: str) -> str:
    if len(pattern) > 256:
        raise ValueError("strftime_now takes at most 256 characters")
    return now.strftime(pattern)
