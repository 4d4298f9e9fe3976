"""Templates as untrusted programs: no access to internals, and a trial before the first use."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from headrace.async_llm import load_tokenizer
from headrace.errors import HeadraceError, TokenizerError
from headrace.models.source import BUNDLED_FOLDER
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.sandbox import compiled, new_environment
from headrace.text.templates.trial import tried
from headrace.text.templates.wire import TemplateLimits
from headrace.text.tokenizer import Tokenizer

TALE = BUNDLED_FOLDER / "tale"

MESSAGES = [{"role": "user", "content": "hello"}]


@cache
def render(source: str) -> str:
    return ChatTemplate(source).render(MESSAGES)


# ---- Nothing to reach ----


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__",
        "''['__class__']",
        "''|attr('__class__')",
        "'{0.__class__}'.format(1)",
        "'{0[__class__]}'.format([])",
        "'{x.__class__}'.format_map({'x': 1})",
        "['']|map(attribute='__class__')|first",
        "['']|map('attr', '__class__')|first",
        "self._TemplateReference__context",
        "range.__class__",
        "raise_exception.__globals__",
        "strftime_now.__closure__",
        "namespace.__init__",
        "cycler.__init__",
        "joiner.__call__",
        "(''.format).__self__",
        "messages.append",
        "messages[0].pop",
        "messages[0].update",
        "loop_target.f_globals",
        "shout._func",
        "shout.__call__",
        "ns._Namespace__attrs",
        "ns.__class__",
        "(messages|map('upper')).gi_frame",
        "undefined_name.__class__",
    ],
)
def test_internals_are_out_of_reach(expression: str) -> None:
    """In the environment of the process that renders: there each template would take a tenth of a second to start."""
    source = "{% macro shout() %}x{% endmacro %}{% set ns = namespace(a=1) %}{{ (" + expression + ") }}"
    try:
        template, _ = compiled(new_environment(), source)
        shown = template.render(messages=MESSAGES)
    except Exception:  # that process turns each into a RequestError
        return
    assert shown in ("", "Undefined")  # read as undefined: nothing was found


@pytest.mark.parametrize(
    "statement",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].clear() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages[0]() }}",
        "{{ 'x'() }}",
    ],
)
def test_these_are_errors(statement: str) -> None:
    with pytest.raises(HeadraceError):
        render(statement)


# ---- Limits ----

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
REPEAT = "{{ 'a' * 10 ** 9 }}"


def test_an_ordinary_long_chat_stays_within_the_limits() -> None:
    source = (
        "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}"
        "{% for m in ns.all %}<|im_start|>{{ m.role + '\n' + m.content|trim }}<|im_end|>\n{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 1000
    defaults = TemplateLimits()
    limits = TemplateLimits(cpu_s=defaults.cpu_s / 4, memory_bytes=defaults.memory_bytes // 4)
    assert ChatTemplate(source, limits=limits).render(messages).count("<|im_start|>") == 1000


def test_the_largest_chat_fits_the_memory() -> None:
    empty = [{"role": "user", "content": "", "parts": [{}] * 10}] * 15_000  # most objects for the weight
    text = [{"role": "user", "content": "水" * 2_000_000}]
    template = ChatTemplate("{{ messages|length }}{{ messages[0].content }}")
    assert template.render(empty) == "15000"
    assert len(template.render(text)) == 2_000_001


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ENDLESS, "refused in a trial: it takes too long"),
        (REPEAT, "refused in a trial: it takes too much memory"),
        pytest.param(
            "{% if tools %}" + REPEAT + "{% endif %}",
            "refused in a trial: it takes too much memory",
            marks=pytest.mark.long,
        ),
        ("{% include 'x' %}", "damaged"),
        pytest.param(  # computed by the compiler
            "{{ (10 ** (10 ** 8)) is none }}", "takes too long", marks=pytest.mark.long
        ),
    ],
    ids=["time", "memory", "only with tools", "damaged", "while compiling"],
)
def test_a_trial_refuses(source: str, reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        tried(source, {})


def test_a_trial_accepts_templates_that_reject_or_fail() -> None:
    for source in ("{{ raise_exception('no') }}", "{{ messages[7].content }}{{ 1 // 0 }}", "{{ bos_token }}"):
        assert tried(source, {"bos_token": "<s>"}).source == source


def test_a_models_template_is_tried_once_before_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = []

    def counted(source: str, variables: Mapping[str, str]) -> ChatTemplate:
        trials.append(source)
        return tried(source, variables)

    monkeypatch.setattr("headrace.text.templates.trial.tried", counted)
    folder = shutil.copytree(TALE, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(REPEAT)
    tokenizer = Tokenizer.from_folder(folder)
    assert trials == []
    for _ in range(2):
        with pytest.raises(TokenizerError, match="refused in a trial"):
            tokenizer.apply_chat_template(MESSAGES)
    assert trials == [REPEAT]


def test_a_server_gives_the_reason_for_refusing_chats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(TALE, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(REPEAT)
    assert load_tokenizer(str(folder)).encode("Once")
    assert "chats are refused, completions work: the chat template was refused in a trial" in caplog.text
