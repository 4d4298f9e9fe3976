"""The README, the pages in docs/ and the examples: the tree, links, anchors and commands are right."""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace import errors
from tests.places import ROOT
from tools import reference

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *DOCS]
BIN = Path(sys.executable).parent
parser = functools.cache(reference.parser)


def blocks(language: str, text: str = README) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for kind, block in fences if kind == language]


def commands(text: str = README) -> list[str]:
    """The lines of a page's shell blocks, as they are typed."""
    joined = "\n".join(blocks("bash", text)).replace("\\\n", " ")
    lines = [re.sub(r"\s+# .*", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def run(words: list[str], stdin: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A program with the commands of this environment on PATH."""
    environ = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=170, cwd=cwd, env=environ, check=False
    )


def test_every_command_is_of_a_known_kind() -> None:
    kinds = {line.split()[0] for line in commands()}
    assert kinds == {"make", "headrace", "."}
    assert {"generate", "chat", "inspect", "bench", "serve"} <= {
        line.split()[1] for line in commands() if line.startswith("headrace")
    }


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make")])
def test_make_targets_exist(line: str) -> None:
    """By name: `make --dry-run` runs recipes that call make, and with them the whole suite."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in line.split()[1:]:
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.long if line.split()[1] in ("bench", "chat", "quantize") else ())
        for line in commands()
        if line.startswith("headrace") and not line.startswith("headrace serve")
    ],
)
def test_readme_commands_run(line: str, tmp_path: Path) -> None:
    done = run(["bash", "-c", line], stdin="Hello!\n/stats\n/exit\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 40


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_is_accepted(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags and arguments after `headrace` exist, on every page; the commands are not run.

    In sentences a command or a flag may be named without its arguments.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    for line, inline in [(line, False) for line in commands(text)] + [
        (line, True) for line in inline_commands(text)
    ]:
        for words in headrace_calls(line):
            try:
                parser().parse_args(words)
            except SystemExit as error:
                printed = capsys.readouterr().err
                named = inline and re.search(
                    "arguments are required|expected (at least )?one argument", printed
                )
                assert error.code == 0 or named, (line, printed)


def inline_commands(text: str) -> list[str]:
    """Calls of headrace between backticks in sentences and tables. `headrace bench KIND` has a placeholder."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`(headrace\s[^`]*)`", prose)
    return [line for line in found if not re.search(r"\b[A-Z]{2,}\b|…", line)]


def unknown_flags(text: str) -> list[str]:
    """Of `python -m benchmarks.…` and `python -m tools.…` on a page: modules that are not there, and flags that their
    sources do not name."""
    found = []
    for module, rest in re.findall(r"python -m ((?:benchmarks|tools)[\w.]*)([^`\n|#]*)", text):
        place = ROOT / module.rstrip(".").replace(".", "/")
        files = (
            [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else sorted(place.glob("*.py"))
        )
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        found += [
            f"{module} {flag}" for flag in re.findall(r"--[a-z][\w-]*", rest) if f'"{flag}"' not in source
        ]
        found += [] if files else [module]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_benchmarks_have_the_flags_that_a_page_names(page: str) -> None:
    assert unknown_flags((ROOT / page).read_text(encoding="utf-8")) == []


def test_an_unknown_flag_of_a_benchmark_is_noticed() -> None:
    text = "`python -m benchmarks.memory --models tale --gone 1` and `python -m benchmarks.gone`"
    assert unknown_flags(text) == ["benchmarks.memory --gone", "benchmarks.gone"]


def headrace_calls(line: str) -> list[list[str]]:
    """The arguments of each call of headrace in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            calls.append([])
        else:
            calls[-1].append(word)
    return [words[1:] for words in calls if words and Path(words[0]).name == "headrace"]


def test_an_unknown_flag_is_noticed() -> None:
    assert headrace_calls("echo hi | .venv/bin/headrace generate --chat - > out &") == [
        ["generate", "--chat", "-"]
    ]
    with pytest.raises(SystemExit):
        parser().parse_args(["generate", "Once", "--no-such-flag"])
    assert inline_commands(
        "`headrace bench KIND`: run `headrace\nchat` or\n```sh\n`headrace serve`\n```"
    ) == ["headrace\nchat"]


@pytest.mark.parametrize("code", blocks("python"))
def test_readme_python_runs(code: str) -> None:
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert "RequestMetrics" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("chat.py", "streaming.py") else pytest.mark.long)
        for name in EXAMPLES
        if name != "openai_client.py"
    ],
)
def test_examples_run(name: str) -> None:
    done = run([sys.executable, f"examples/{name}"])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """`headrace serve` as the README says, on a port that is free; gives the address of its API."""
    (line,) = [line for line in commands() if line.startswith("headrace serve") and "--port" in line]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(port) if word == "8000" else word for word in shlex.split(line)[1:]]
    with subprocess.Popen([BIN / "headrace", *words], stdout=subprocess.DEVNULL, cwd=ROOT) as server:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_the_served_model_answers_the_example_client(served: str) -> None:
    done = run([sys.executable, "examples/openai_client.py", served])
    assert done.returncode == 0, done.stderr
    assert "bear" in done.stdout


@pytest.mark.long
def test_the_quickstart_runs(served: str, tmp_path: Path) -> None:
    """Each block as a script of its own, in order, but for the installation, the server, and what the README shows."""
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    scripts = [
        block for block in blocks("bash", text) if not re.search(r"apt-get|make|pip|headrace serve", block)
    ]
    assert sum(len(commands(f"```bash\n{script}```")) for script in scripts) == 14
    tested = set(commands())
    for script in scripts:
        lines = [line for line in script.splitlines() if line not in tested]
        here = "\n".join(lines).replace("http://127.0.0.1:8000/v1", served)
        done = run(["bash", "-ec", here], stdin="Hello!\n/exit\n", cwd=tmp_path)
        assert done.returncode == 0, (script, done.stderr)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    (code,) = blocks("python", text)
    done = run([sys.executable, "-c", code.replace("http://127.0.0.1:8000/v1", served)])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 40


def test_the_tree_names_what_is_there() -> None:
    (tree,) = [block for block in blocks("") if block.startswith("src/headrace/")]
    folder = ROOT
    named = set()
    for line in tree.splitlines():
        name, *what = line.strip().split(None, 1)
        folder = ROOT / "src" / "headrace" if line.startswith("  ") else ROOT
        assert (folder / name).exists(), name
        assert what or name == "src/headrace/"
        named.add(folder / name.rstrip("/"))
    package = ROOT / "src" / "headrace"
    there = {path for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    there |= {path for path in package.glob("*.py")}
    assert there <= named, sorted(path.name for path in there - named)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" not in target:
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), target
            if anchor:
                assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"
    assert missing_paths(text) == []


PACKAGE = ROOT / "src" / "headrace"
FOLDERS = {
    path.name for path in (*PACKAGE.iterdir(), *ROOT.iterdir()) if path.is_dir() and path.name[0] not in "._"
}


def missing_paths(text: str) -> list[str]:
    """Files and folders of the package or of the repository that a page names, `*` among them, and that are not
    there."""
    named = re.findall(rf"`((?:{'|'.join(sorted(FOLDERS))})/[\w./*-]*)`", text)
    return [
        name for name in named if not any(any(base.glob(name)) for base in (PACKAGE, ROOT, ROOT / "docs"))
    ]


def test_a_moved_file_is_noticed() -> None:
    text = "`core/scheduler.py`, `csrc/isa/attention_*.h`, `quant/gone.py`, `csrc/isa/gone_*.h`, `images/plan.svg`"
    assert missing_paths(text) == ["quant/gone.py", "csrc/isa/gone_*.h"]


TESTS = sorted((ROOT / "tests").rglob("*.py"))
FUNCTIONS = set(
    re.findall(
        r"^(?:async )?def (test_\w+)", "\n".join(path.read_text(encoding="utf-8") for path in TESTS), re.M
    )
)


def missing_tests(text: str) -> list[str]:
    """Test files and functions that a page names and that are not there."""
    files = {path.name for path in TESTS}
    named = re.findall(r"\b((?:test|hand)_\w+\.py)\b", text)
    return [name for name in named if name not in files] + [
        name for name in re.findall(r"`(test_\w+)`", text) if name not in FUNCTIONS
    ]


@pytest.mark.parametrize("page", PAGES)
def test_named_tests_exist(page: str) -> None:
    assert missing_tests((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_renamed_test_is_noticed() -> None:
    text = "[test_docs.py](../tests/test_docs.py), `test_gone.py`, `test_named_tests_exist`, `test_gone`"
    assert missing_tests(text) == ["test_gone.py", "test_gone"]


OF_THE_SERVER = {"from_config", "drain", "client", "totals"}
"""What of `AsyncLLM` only `headrace serve` calls."""


def test_the_api_page_and_the_readme_name_what_is_public() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    for name in headrace.__all__:
        if not name.startswith("__") and not hasattr(errors, name):
            assert f"`{name}`" in page, name
    for engine, own in ((headrace.LLM, set()), (headrace.AsyncLLM, OF_THE_SERVER)):
        methods = {name for name in vars(engine) if not name.startswith("_")} - own
        assert {name for name in methods if not re.search(rf"`(?:await )?{name}\b", page)} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for api in ("OpenAI", "Anthropic", "Ollama"):
        assert api in README.split("## ")[0] and api in project["description"]


def test_the_python_of_the_api_pages_runs() -> None:
    """All blocks in one process, because a start of Python takes longer than most of them."""
    pages = [
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("python-api.md", "structured-output.md")
    ]
    code = [block for page in pages for block in blocks("python", page)]
    assert len(code) >= 6
    done = run([sys.executable, "-c", "\n".join(code)])
    assert done.returncode == 0, done.stderr
    assert "the prompt has 2000 tokens" in done.stdout


def test_the_formulas_hold() -> None:
    (code,) = blocks("python", (ROOT / "docs" / "from-the-guides.md").read_text(encoding="utf-8"))
    assert code.count("assert ") >= 12
    exec(compile(code, "docs/from-the-guides.md", "exec"), {})


def test_every_error_class_has_its_remedy() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    rows = {
        name: (int(status), code)
        for name, status, code in re.findall(r"^\| `(\w+)` \| (\d+) \| `(\w+)`", text, re.M)
    }
    assert len(rows) >= 10
    assert rows == {name: (classes[name].status, classes[name].code) for name in rows}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
