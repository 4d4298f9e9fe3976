"""Calls as text, in a model's own format: for chat templates that do not write them themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.text.tools.formats import GENERIC, ToolCallFormat
from headrace.text.tools.grammar.forms import FORMS, Form

Arguments = Mapping[str, Any] | str
"""An object, or text where a model wrote something else."""


def written_calls(calls: Sequence[tuple[str, Arguments]], how: ToolCallFormat) -> str:
    """The calls, each a name and arguments, as a model writes them. Raises what `json.dumps` does."""
    form = _form(how)
    return _around(form, [form.head(name) + _arguments(form, given) + form.tail for name, given in calls])


def example(how: ToolCallFormat) -> str:
    """What a call looks like, as a prompt describes it to the model."""
    form = _form(how)
    if form.tags is not None:
        given = _tagged(form, "ARGUMENT", "VALUE")
    else:
        given = "ARGUMENT=VALUE" if form.python else "{ARGUMENTS}"
    return _around(form, [form.head("NAME") + given + form.tail])


_WITHOUT_GRAMMAR = {"pythonic": Form(lambda name: f"{name}(", ")", "[", ", ", "]", python=True)}


def _form(how: ToolCallFormat) -> Form:
    return FORMS.get(how.name) or _WITHOUT_GRAMMAR.get(how.name) or FORMS[GENERIC.name]


def _around(form: Form, calls: list[str]) -> str:
    return form.before + form.between.join(calls) + form.after


def _arguments(form: Form, given: Arguments) -> str:
    if isinstance(given, str):
        return given
    if form.tags is not None:
        texts = {key: it if isinstance(it, str) else _json(it) for key, it in given.items()}
        return "".join(_tagged(form, key, text) for key, text in texts.items())
    if form.python:
        return ", ".join(f"{key}={_python(value)}" for key, value in given.items())
    return _json(given)


def _tagged(form: Form, key: str, text: str) -> str:
    tags = form.tags
    assert tags is not None
    line = "\n" if tags.lines else ""
    return f"{tags.key}{key}{tags.keyed}{line}{tags.value}{text}{line}{tags.ended}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _python(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_json(str(key))}: {_python(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_python, value))}]"
    return str(value) if value is None or isinstance(value, bool) else _json(value)
