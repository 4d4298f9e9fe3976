"""What chat templates of Hugging Face models expect besides Jinja's features, as in `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace


class RaisedByTemplate(Exception):
    """The template called `raise_exception`; the text is the template's own."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote; for rendering it is a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class PlainNamespace(Namespace):
    """A namespace without names that begin with an underscore, and that prints none of its contents."""

    def __init__(*args: Any, **named: Any) -> None:
        contents = dict(*args[1:], **named)
        for name in contents:
            _check_name(name)
        Namespace.__init__(args[0], contents)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError("names of a namespace are strings that do not begin with an underscore")


def _plain_dict(*args: Any, **named: Any) -> dict[Any, Any]:
    """`dict` without the type's methods, and of a bounded size: keys can be chosen so that all collide."""
    pairs = [list(islice(arg.items() if isinstance(arg, dict) else arg, MAX_PAIRS + 1)) for arg in args]
    if any(len(each) > MAX_PAIRS for each in pairs):
        raise OverflowError(f"dict takes at most {MAX_PAIRS} pairs")
    return dict(*pairs, **named)


MAX_PAIRS = 4096
"""Most pairs that `dict` takes."""


def template_globals(now: Callable[[], datetime]) -> dict[str, Callable[..., Any]]:
    """The functions that templates call by name; `now` is the clock of `strftime_now`."""

    def strftime_now(format: str) -> str:
        if len(format) > 256:
            raise ValueError("strftime_now takes at most 256 characters")
        return now().strftime(format)

    def raise_exception(message: Any) -> None:
        raise RaisedByTemplate(str(message)[:2000])

    return {
        "dict": _plain_dict,
        "namespace": PlainNamespace,
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
    }
