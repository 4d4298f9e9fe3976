"""The Jinja environment of chat templates: Jinja's immutable sandbox, with what `transformers` adds to it."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.environment import Template
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.text.templates.wire import Reads


class RaisedByTemplate(Exception):
    """The template called `raise_exception`; the text is the template's own."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote; for rendering it is a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def new_environment() -> ImmutableSandboxedEnvironment:
    """An environment; who renders adds `strftime_now`, which depends on the time, to its globals."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def compiled(environment: ImmutableSandboxedEnvironment, source: str) -> tuple[Template, Reads]:
    """The template, and which forms of messages it reads.

    Raises TemplateSyntaxError, and whatever the parser and Python's compiler raise for hostile input.
    """
    tree = environment.parse(source)
    for other in tree.find_all(_UNAVAILABLE):
        raise TemplateSyntaxError("it loads other templates or escapes for HTML", other.lineno)
    reads = Reads(0)
    if any(_ends_in(loop.iter, "content") for loop in tree.find_all(nodes.For)):
        reads |= Reads.PARTS
    added = [part for sum in tree.find_all(nodes.Add) for part in (sum.left, sum.right)]
    joined = added + [part for text in tree.find_all(nodes.Concat) for part in text.nodes]
    if any(not isinstance(part, nodes.Filter) and _ends_in(part, "arguments") for part in joined):
        reads |= Reads.ARGUMENTS_AS_TEXT
    if any(not isinstance(part, nodes.Filter) and _ends_in(part, "description") for part in added):
        reads |= Reads.DESCRIPTIONS  # nothing else fails without one
    return environment.from_string(tree), reads


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message)[:2000])


def _tojson(
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


_UNAVAILABLE: tuple[type[nodes.Node], ...] = (
    nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.EvalContextModifier,
    nodes.ScopedEvalContextModifier,
)  # fmt: skip
"""There are no other files, and escaping is for HTML."""


def _ends_in(node: nodes.Node, name: str) -> bool:
    match node:
        case nodes.Name(name=found) | nodes.Getattr(attr=found) | nodes.Getitem(arg=nodes.Const(value=found)):
            return bool(found == name)
        case nodes.Filter(node=nodes.Node() as inner):
            return _ends_in(inner, name)
    return False
