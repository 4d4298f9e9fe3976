"""Compiling chat templates: reading them within a limit, and the code that asks before it works.

The operations that Jinja's sandbox does not intercept are compiled into calls of hooks of `TemplateEnvironment`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser


class TokenLimit(Extension):
    """Stops reading a template that has too many tokens."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        limit = self.environment.limits.tokens  # type: ignore[attr-defined]
        for count, token in enumerate(stream):
            if count >= limit:
                raise TemplateSyntaxError(f"the template has more than {limit} tokens", token.lineno)
            yield token


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote; for rendering it is a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class PayingCodeGenerator(CodeGenerator):
    """Compiles the operations that the sandbox does not intercept into calls of the environment's hooks."""

    def blockvisit(self, nodes_: Any, frame: Frame) -> None:
        body = list(nodes_)
        units, chars = _work_of(body)
        self.writeline(f"environment.pay({units}, {chars})")
        super().blockvisit(body, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:
            node.iter = nodes.Call(nodes.EnvironmentAttribute("counted"), [node.iter], [], None, None)
        super().visit_For(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("environment.compare(")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", {operand.op!r}, ")
            self.visit(operand.expr, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.tilde((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.cut(")
        self.visit(node.node, frame)
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            if bound is None:
                self.write("None")
            else:
                self.visit(bound, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("{")
        for pair in node.items:
            self.write("environment.key(")
            self.visit(pair.key, frame)
            self.write("): ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

    def _refuse(self, node: nodes.Node, frame: Frame) -> None:
        kind = "autoescape" if "EvalContext" in type(node).__name__ else type(node).__name__.lower()
        self.fail(f"{kind} is not available in chat templates", node.lineno)

    # Other files do not exist here, and escaping is for HTML.
    visit_Extends = visit_Include = visit_Import = visit_FromImport = _refuse
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _refuse


def _work_of(body: Sequence[nodes.Node]) -> tuple[int, int]:
    """Nodes and literal characters that a run of these statements goes through, inner bodies left to themselves."""
    units, chars = 1, 0
    stack = list(body)
    while stack:
        node = stack.pop()
        units += 1
        if isinstance(node, nodes.TemplateData):
            chars += len(node.data)
        stack.extend(node.iter_child_nodes(exclude=("body", "else_")))
    return units, chars


def lists_are_read(template: nodes.Template) -> bool:
    """True where a template goes through the parts of a message's content; others expect one string."""
    return any(_ends_in_content(loop.iter) for loop in template.find_all(nodes.For))


def _ends_in_content(node: nodes.Node) -> bool:
    match node:
        case nodes.Name():
            return node.name == "content"
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem():
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        case nodes.Filter():
            return node.node is not None and _ends_in_content(node.node)
    return False
