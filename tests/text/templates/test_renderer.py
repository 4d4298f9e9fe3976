"""Templates that behave at load and attack on a certain message: only the process that renders them ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import Overloaded, RequestError
from headrace.text.templates import turns
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.renderer import TemplateStopped
from headrace.text.templates.turns import Turns
from headrace.text.templates.wire import TemplateLimits
from tests.places import TALE
from tests.server.conftest import TinyServer
from tests.waiting import until

HELLO = [{"role": "user", "content": "hello"}]
ATTACK = [{"role": "user", "content": "attack"}]

BIG = "{% set b = ('f' * (4000000 * messages|length))|int(0, 16) %}"
"""A large number, which depends on the messages, or the compiler would compute it."""
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
NESTED = "(" * 40 + "ns.x" + ",)" * 40

ATTACKS = {
    "hash of deep tuples": (
        "{% set ns = namespace(x=()) %}{% for i in range(4000) %}{% set ns.x = " + NESTED + " %}{% endfor %}"
        "{% set d = {ns.x: 1} %}",
        "SIGSEGV",
    ),
    "sum of large numbers": (BIG + "{{ ([b] * 60000)|sum is none }}", "too long"),
    "count of a large number": (BIG + BIG.replace("b =", "c =") + "{{ ([b] * 60000).count(c) }}", "too long"),
    "endless loop": (ENDLESS, "too long"),
    "power": ("{{ (10 ** (messages|length * 10 ** 8)) is none }}", "too long"),
    "format by name": (BIG + "{{ ('%(a)x' * 600) % {'a': b} }}", "too much memory|too long"),
    "printed numbers": ("{% set a = ('f' * 3500)|int(0, 16) %}{{ [a] * 20000 }}", "prints too much|too long"),
    "repeat": ("{{ 'a' * 10 ** 9 }}", "too much memory|too long"),
    "doubling": (
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "too much memory|too long",
    ),
    "long output": ("{{ 'a' * 5000000 }}", "prints too much"),
}


def armed(attack: str) -> str:
    """A template that answers, and attacks only after the message "attack"."""
    return "{% if messages[-1].content == 'attack' %}" + attack + "{% endif %}<{{ messages[-1].content }}>"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pid_of(template: ChatTemplate) -> int:
    pid = template.renderer.pid
    assert pid is not None
    return pid


@pytest.fixture(scope="module")
def calm() -> Iterator[ChatTemplate]:
    template = ChatTemplate(armed(ENDLESS))
    yield template
    template.renderer.close()


# ---- Attacks ----


USUAL = ("hash of deep tuples", "endless loop", "repeat", "long output")
"""One for each way in which a rendering ends."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in ATTACKS]
)
def test_an_attack_ends_one_rendering(name: str) -> None:
    attack, reason = ATTACKS[name]
    template = ChatTemplate(armed(attack), limits=TemplateLimits(cpu_s=0.5 if reason == "SIGSEGV" else 0.25))
    assert template.render(HELLO) == "<hello>"
    first = pid_of(template)
    with pytest.raises(TemplateStopped, match=reason):
        template.render(ATTACK)
    assert not alive(first)
    assert template.render(HELLO) == "<hello>"
    assert pid_of(template) != first


@pytest.mark.long
def test_a_server_under_attack_serves_others(tmp_path: Path) -> None:
    folder = shutil.copytree(TALE, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(armed(ATTACKS["sum of large numbers"][0]))
    server = TinyServer(folder=folder)
    try:
        chat = {"max_tokens": 1}
        assert server.http.post("/v1/chat/completions", json=chat | {"messages": HELLO}).status_code == 200
        tokenizer = server.app.state.service.tokenizer
        (template,) = tokenizer._templates.values()
        first = pid_of(template)
        before = cpu_s(first)
        with ThreadPoolExecutor(1) as attacker:
            pending = attacker.submit(
                server.http.post, "/v1/chat/completions", json=chat | {"messages": ATTACK}
            )
            until(lambda: cpu_s(first) > before + 0.2)  # the attack runs
            for _ in range(10):
                assert server.http.get("/health").status_code == 200
            assert alive(first)  # and still did
            answer = pending.result()
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "the chat template was stopped: it takes too long."
        assert server.http.post("/v1/chat/completions", json=chat | {"messages": HELLO}).status_code == 200
    finally:
        server.close()


# ---- The process ----


def test_the_process_has_nothing_but_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECRET", "mill")
    template = ChatTemplate("{{ messages }}")
    assert "hello" in template.render(HELLO)
    process = Path(f"/proc/{pid_of(template)}")
    assert [(file.name, os.readlink(file).partition(":")[0]) for file in (process / "fd").iterdir()] == [
        ("0", "socket")
    ]
    limits = (process / "limits").read_text()
    for name in ("Max core file size", "Max file size", "Max processes"):
        assert f"{name:<26}0  " in limits
    assert f"{'Max open files':<26}1  " in limits
    assert f"{'Max address space':<26}{512 * 2**20}  " in limits
    assert "mill" not in (process / "environ").read_text()
    maps = (process / "maps").read_text()
    assert "libc" in maps and not any(name in maps for name in ("numpy", "tokenizers", "torch", "_native"))
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    print("resident:", status["VmRSS"].strip())
    assert int(status["VmRSS"].split()[0]) < 64 * 1024


def test_features_that_jinja_imports_late_need_no_file() -> None:
    source = r"{{ '\N{BULLET}' }}{{ 'a b'|wordwrap(1) }}{{ [1]|pprint }}{{ '<b>&amp;'|striptags }}{{ lipsum(1) != '' }}"
    assert ChatTemplate(source).render(HELLO) == "•a\nb[1]&True"


PROGRAM = """
import os, sys
from headrace.text.templates.chat import ChatTemplate
source, content = sys.argv[1:]
template = ChatTemplate(source)
print(template.renderer.pid, flush=True)
if content:
    template.render([{"role": "user", "content": content}])
sys.stdin.read()
"""


@pytest.mark.parametrize("content", ["", "attack"], ids=["idle", "rendering"])
def test_the_process_ends_with_its_parent(content: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, armed(ENDLESS), content],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        if content:
            idle = cpu_s(child)
            until(lambda: cpu_s(child) > idle + 0.1)
        parent.kill()
    until(lambda: not alive(child))


def test_a_process_that_was_killed_is_replaced(calm: ChatTemplate) -> None:
    first = pid_of(calm)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    assert calm.render(HELLO) == "<hello>"
    assert pid_of(calm) != first


def test_closing_and_collecting_end_the_process() -> None:
    template = ChatTemplate("x")
    first = pid_of(template)
    template.renderer.close()
    assert not alive(first)
    assert template.render(HELLO) == "x"
    second = pid_of(template)
    assert alive(second)
    del template
    assert not alive(second)


def test_ctrl_c_leaves_no_answer_for_the_next_conversation(calm: ChatTemplate) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    busy = pid_of(calm)
    idle = cpu_s(busy)

    def press() -> None:
        until(lambda: cpu_s(busy) > idle + 0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            calm.render(ATTACK)
        presser.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calm.render(HELLO) == "<hello>"


def test_jinja_is_loaded_in_that_process_only() -> None:
    program = (
        "import sys; from headrace.text.templates.chat import ChatTemplate as T;"
        "print(T('x').render([{'role': 'user', 'content': ''}]), sys.modules.keys() & {'jinja2', 'numpy'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "x set()\n", done.stderr


FORK = """
import os
from headrace.text.templates.chat import ChatTemplate
template = ChatTemplate("{{ messages[0].content }}")
ours = template.renderer.pid
def render(text): return template.render([{"role": "user", "content": text}])
child = os.fork()
if child == 0:
    fine = render("child") == "child" and template.renderer.pid != ours
    del template
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0
assert render("parent") == "parent" and template.renderer.pid == ours
"""


def test_a_forked_child_has_a_process_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- Callers ----


def test_threads_get_their_own_answers(calm: ChatTemplate) -> None:
    def ask(number: int) -> str:
        return calm.render([{"role": "user", "content": str(number)}])

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(ask, range(200))) == [f"<{number}>" for number in range(200)]


@pytest.mark.parametrize("content", ["\ud800", "\x00水👩‍🌾", "a" * 1_900_000])
def test_any_text_passes(calm: ChatTemplate, content: str) -> None:
    assert calm.render([{"role": "user", "content": content}]) == f"<{content}>"


def test_values_pass_as_they_are(calm: ChatTemplate) -> None:
    template = ChatTemplate("{{ values }}")
    values = [None, True, 1.5, -0.0, 1e400, 2**60, {"a": []}]
    assert template.render(HELLO, values=values) == str(values)
    with pytest.raises(RequestError, match="cannot be written"):
        template.render(HELLO, values=[1 << 20_000])


def test_calls_of_an_event_loop_take_one_thread_in_order() -> None:
    seen: list[tuple[int, str]] = []

    async def run() -> None:
        calls = Turns()
        await asyncio.gather(
            *(calls.run(lambda n=n: seen.append((n, threading.current_thread().name))) for n in range(50))
        )

    asyncio.run(run())
    assert [number for number, _ in seen] == list(range(50))
    assert len({name for _, name in seen}) == 1


def test_too_many_callers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WAITING", 3)
    free = threading.Event()

    async def run() -> None:
        calls = Turns()
        waiting = [asyncio.create_task(calls.run(free.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await calls.run(free.wait)
        waiting[2].cancel()  # one that waits leaves its place
        await asyncio.wait([waiting[2]])
        fourth = asyncio.create_task(calls.run(lambda: "fourth"))
        await asyncio.sleep(0)
        free.set()
        assert await fourth == "fourth"
        assert await waiting[0] and await waiting[1]

    asyncio.run(run())
