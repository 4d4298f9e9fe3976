"""Templates as untrusted programs: no access to internals, and limits on everything."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from headrace.async_llm import load_tokenizer
from headrace.errors import HeadraceError, RequestError, TokenizerError
from headrace.models.source import BUNDLED_FOLDER
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.sandbox import TemplateLimits
from headrace.text.templates.trial import refusal
from headrace.text.tokenizer import Tokenizer

TALE = BUNDLED_FOLDER / "tale"

MESSAGES = [{"role": "user", "content": "hello"}]


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
        "dict.fromkeys",
        "joiner.__call__",
        "(''.format).__self__",
        "messages.append",
        "messages[0].pop",
        "messages[0].update",
        "(1).to_bytes",
        "'x'.encode",
        "'x'.translate",
        "loop_target.f_globals",
        "shout._func",
        "shout.__call__",
        "ns._Namespace__attrs",
        "ns.__class__",
        "(messages|map('upper')).gi_frame",
        "(messages|map('upper')).send",
        "messages[0].items().mapping",
        "undefined_name.__class__",
    ],
)
def test_internals_are_out_of_reach(expression: str) -> None:
    source = "{% macro shout() %}x{% endmacro %}{% set ns = namespace(a=1) %}{{ (" + expression + ") }}"
    try:
        shown = render(source)
    except RequestError:
        return
    assert shown in ("", "Undefined")  # read as undefined: nothing was found


@pytest.mark.parametrize(
    "statement",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].clear() }}",
        "{{ lipsum() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ namespace({'__class__': 1}) }}",
        "{{ messages[0]() }}",
        "{{ 'x'() }}",
        "{{ messages|random }}",
        "{{ messages|xmlattr }}",
    ],
)
def test_these_are_errors(statement: str) -> None:
    with pytest.raises(HeadraceError):
        render(statement)


def test_a_namespace_has_no_accessible_internals() -> None:
    assert render("{% set ns = namespace(a='secret') %}{{ ns }} {{ ns.a }}") == "<namespace> secret"


# ---- An end to everything ----

GROW = "{% set ns = namespace(s='a', l=['a'], t=('a',)) %}{% for i in range(60) %}BODY{% endfor %}"

HOSTILE = {
    "nested loops": "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}",
    "empty loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops without a body": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops in filters": "{% for i in range(99999) %}{{ range(99999)|map('string')|list|length }}{% endfor %}",
    "attributes in filters": "{% for i in range(99999) %}{{ range(99999)|map(attribute='x')|list }}{% endfor %}",
    "sorting": "{% for i in range(99999) %}{{ range(99999)|sort|sum }}{% endfor %}",
    "slicing": "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% set x = s[1:] %}{% endfor %}",
    "star arguments": "{% macro f() %}{{ varargs|length }}{% endmacro %}"
    "{% set r = range(99999) %}{% for i in r %}{{ f(*r) }}{% endfor %}",
    "recursive loop": "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "endless block": "{% block a %}{{ self.a() }}{% endblock %}",
    "literal text": "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "literal text caught": "{% macro f() %}" + "x" * 100_000 + "{% endmacro %}"
    "{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
    "repeat": "{{ 'a' * 10**9 }}",
    "repeat from the right": "{{ 10**9 * 'a' }}",
    "repeat a list": "{{ [1] * 10**9 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "powers": "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "long division": "{% set n = 0x" + "f" * 3000 + " %}{{ n // 3 }}",
    "printf width": "{{ '%1000000000d' % 1 }}",
    "printf precision": "{{ '%.1000000000f' % 1 }}",
    "printf star": "{{ '%*d' % (1000000000, 1) }}",
    "printf width by name": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "printf by filter": "{{ '%1000000000d'|format(1) }}",
    "printf by test": "{{ '%1000000000d' is odd }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format width from a value": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format braces": "{{ ('{' * 4000000).format() }}",
    "percent signs": "{{ ('%%' * 2000000) % () }}",
    "center": "{{ 'a'|center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "indent": "{{ 'a'|indent(10**9, true) }}",
    "indent lines": "{{ ('a\\n' * 1000)|indent(10**7) }}",
    "indent json": "{{ [[1]]|tojson(indent=10**9) }}",
    "separators of json": "{{ ([1] * 1000)|tojson(separators=('a' * 10**5, 'b')) }}",
    "round": "{{ 1|round(10**9) }}",
    "round a string": "{{ 'aaa'|round(9, 'ceil') }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "join": "{{ range(99999)|join('a' * 10**6) }}",
    "join method": "{{ ('a' * 10**6).join(range(99999)|map('string')) }}",
    "replace": "{{ ('a' * 10**5).replace('a', 'a' * 10**5) }}",
    "replace nothing": "{{ ('a' * 10**5)|replace('', 'a' * 10**5) }}",
    "sum of lists": "{{ ([[1]] * 99999)|sum(start=[]) }}",
    "search from the right": "{% set s = 'a' * 2000000 %}{{ s.rfind('b' + 'a' * 1000000) }}",
    "strip a set": "{% set s = 'a' * 2000000 %}{{ s.strip('b' * 1000000 + 'a') }}",
    "trim a set": "{% set s = 'a' * 2000000 %}{{ s|trim('b' * 1000000 + 'a') }}",
    "splitting": "{% for i in range(999) %}{% set x = ('a ' * 1000000).split() %}{% endfor %}",
    "keeping splits": "{% set ns = namespace(l=[]) %}{% for i in range(99) %}"
    "{% set ns.l = ns.l + [('a,' * 2000000).split(',')] %}{% endfor %}",
    "grow by ~": GROW.replace("BODY", "{% set ns.s = ns.s ~ ns.s %}"),
    "grow by +": GROW.replace("BODY", "{% set ns.s = ns.s + ns.s %}"),
    "grow by a block": GROW.replace("BODY", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
    "grow by join": GROW.replace("BODY", "{% set ns.s = [ns.s, ns.s]|join %}"),
    "grow by replace": GROW.replace("BODY", "{% set ns.s = ns.s.replace('a', 'aa') %}"),
    "grow by printf": GROW.replace("BODY", "{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
    "grow by format": GROW.replace("BODY", "{% set ns.s = '{0}{0}'.format(ns.s) %}"),
    "grow a list": GROW.replace("BODY", "{% set ns.l = ns.l + ns.l %}"),
    "print a shared tree": GROW.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
    "json of a shared tree": GROW.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l|tojson }}",
    "string of shared dicts": GROW.replace("BODY", "{% set ns.l = {'a': ns.l, 'b': ns.l} %}") + "{{ ns.l|string }}",
    "compare shared trees": GROW.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}{% set ns.t = [ns.t, ns.t] %}")
    + "{{ ns.l == ns.t }}",
    "hash a shared tree": GROW.replace("BODY", "{% set ns.t = (ns.t, ns.t) %}") + "{{ {ns.t: 1} }}",
    "look up a shared tree": GROW.replace("BODY", "{% set ns.t = (ns.t, ns.t) %}") + "{{ messages[0].get(ns.t) }}",
    "index by a shared tree": GROW.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ messages[ns.l].x }}",
    "share by varargs": "{% set ns = namespace(t=('a',)) %}{% macro f() %}{% set ns.t = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ f(ns.t, ns.t) }}{% endfor %}{{ ns.t }}",
    "colliding keys": "{{ range(0, (2**61 - 1) * 99999, 2**61 - 1)|unique|list|length }}",
    "colliding pairs": "{{ dict(range(0, (2**61 - 1) * 9999, 2**61 - 1)|batch(2)|list) }}",
    "bad strftime": "{{ strftime_now('%Y' * 1000) }}",
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_end_in_an_error(source: str) -> None:
    limits = TemplateLimits(
        cpu_s=0.1
    )  # to save the tests' time: without an end these take hours or all memory
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source, limits=limits).render(MESSAGES)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ("{% set ns.x = [ns.x] %}", "done"),
        ("{% set ns.x = ns.x|map('upper') %}", "done"),
        ("{% set ns.x = namespace(x=ns.x) %}", "done"),
        ("{% set g = ns.x %}{% macro f() %}{{ g }}{% endmacro %}{% set ns.x = f %}", "done"),
    ],
)
def test_long_chains_are_freed_without_recursion(body: str, end: str) -> None:
    """A chain of 20 000 objects that free one another would overflow the C stack, which is no exception."""
    source = "{% set ns = namespace(x=[]) %}{% for i in range(20000) %}" + body + "{% endfor %}done"
    assert render(source) == end


def test_the_clock_ends_a_rendering() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}", limits=TemplateLimits(cpu_s=0.0))
    with pytest.raises(RequestError, match="too long"):
        template.render(MESSAGES)


def test_an_ordinary_long_chat_stays_within_the_limits() -> None:
    source = (
        "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}"
        "{% for m in ns.all %}<|im_start|>{{ m.role + '\n' + m.content|trim }}<|im_end|>\n{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 1000
    limits = TemplateLimits(cpu_s=TemplateLimits().cpu_s / 4, all_chars=TemplateLimits().all_chars // 8)
    assert ChatTemplate(source, limits=limits).render(messages).count("<|im_start|>") == 1000


# ---- The trial ----

UNHOOKED = "{% set a = ['x'] * 1000000 %}{% set b = ['x'] * 1000000 %}{{ [" + "a == b, " * 8000 + "] }}"
"""Comparisons have no hook. Each of these takes milliseconds."""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(UNHOOKED, "processor time", marks=pytest.mark.long),
        (HOSTILE["empty loops"], "trial: .* takes too long"),
        (HOSTILE["repeat"], "trial: .* too large"),
        ("{% if tools %}" + HOSTILE["repeat"] + "{% endif %}", "trial: .* too large"),
        ("{% include 'x' %}", "damaged"),
    ],
    ids=["no hook", "time", "size", "only with tools", "damaged"],
)
def test_a_trial_refuses(source: str, reason: str) -> None:
    assert re.search(reason, refusal(source) or "")


def test_a_trial_accepts_templates_that_reject_or_fail() -> None:
    assert refusal("{{ raise_exception('no') }}") is None
    assert refusal("{{ messages[7].content }}{{ 1 // 0 }}") is None
    assert refusal("{{ bos_token }}{{ messages[0].content }}", (("bos_token", "<s>"),)) is None


def test_a_models_template_is_tried_before_its_first_use(tmp_path: Path) -> None:
    folder = shutil.copytree(TALE, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(HOSTILE["repeat"] + "{# another #}")
    tokenizer = Tokenizer.from_folder(folder)
    tried = refusal.cache_info().misses
    for _ in range(2):
        with pytest.raises(TokenizerError, match="refused in a trial"):
            tokenizer.apply_chat_template(MESSAGES)
    assert refusal.cache_info().misses == tried + 1


def test_a_server_gives_the_reason_for_refusing_chats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(TALE, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(HOSTILE["repeat"])
    assert load_tokenizer(str(folder)).encode("Once")
    assert "chats are refused, completions work: the chat template was refused in a trial" in caplog.text
