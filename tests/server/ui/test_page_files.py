"""The page's files: small, complete, from this server only, and without external code."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from headrace.server.ui import page
from headrace.server.ui.page import CALCULATOR, DOCS, INDEX, PAGE
from tests.server.conftest import TinyServer

FOLDER = Path(page.__file__).parent / "static"
FILES = {
    path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8")
    for path in FOLDER.rglob("*")
    if path.is_file()
}
MAX_BYTES = 120_000
OTHERS = ("docs/", "calculator/")
"""Pages of their own."""


def test_every_file_of_the_folder_is_served(tiny: TinyServer) -> None:
    assert set(PAGE) == set(FILES)
    for name, text in FILES.items():
        answer = tiny.http.get(
            {INDEX: "/", DOCS: "/docs", CALCULATOR: "/calculator"}.get(name, f"/page/{name}")
        )
        assert answer.status_code == 200, name
        assert answer.text == text
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/none.js", "/page/chat/none.js", "/page/chat", "/page/chat/", "/page/index.html",
     "/page/docs/docs.html", "/page/calculator/calculator.html", "/page/chat.js", "/page/chat/../app.js/x",
     "/page/../app.py", "/page/..%2fapp.py",
     "/page/%2e%2e/page.py", "/page//etc/passwd", "/page/app.js/x"],
)  # fmt: skip
def test_nothing_else_is(tiny: TinyServer, path: str) -> None:
    answer = tiny.http.get(path)
    assert answer.status_code == 404
    assert "error" in answer.json() or "detail" in answer.json()


def test_an_unchanged_file_is_not_sent_again(tiny: TinyServer) -> None:
    first = tiny.http.get("/page/app.js")
    again = tiny.http.get("/page/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert tiny.http.get("/page/app.js", headers={"If-None-Match": '"other"'}).status_code == 200
    for given in (f"W/{first.headers['etag']}", f'"other", {first.headers["etag"]}', "*"):
        assert tiny.http.get("/page/app.js", headers={"If-None-Match": given}).status_code == 304


def test_the_policy_allows_no_other_origin(tiny: TinyServer) -> None:
    policy = tiny.http.get("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[kind] for kind in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert {rules[kind] for kind in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy


def test_the_page_is_small() -> None:
    assert sum(len(file.content) for name, file in PAGE.items() if not name.startswith(OTHERS)) < MAX_BYTES


def foreign(files: Mapping[str, str]) -> list[str]:
    """Addresses that a browser would ask elsewhere; the name of SVG's language is none."""
    found = []
    for name, text in files.items():
        for address in re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"')]*", text):
            if address not in ("http://www.w3.org/2000/svg",):
                found.append(f"{name}: {address}")
    return found


def test_no_file_names_another_server() -> None:
    assert foreign(FILES) == []
    planted = FILES | {"common/style.css": '@import "//fonts.example.com/inter.css";'}
    assert foreign(planted) == ["common/style.css: //fonts.example.com/inter.css"]


MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\(|new Function|srcdoc"


def markup_from_text(files: Mapping[str, str]) -> list[str]:
    return [f"{name}: {found}" for name, text in files.items() for found in re.findall(MARKUP, text)]


def test_no_script_makes_markup_from_text() -> None:
    assert markup_from_text(FILES) == []
    assert markup_from_text({"chat.js": "box.innerHTML = answer"}) == ["chat.js: innerHTML"]


def missing(files: Mapping[str, str]) -> list[str]:
    """What a file asks for that is not there."""
    expected = []
    for name, text in files.items():
        expected += [(name, other) for other in re.findall(r'(?:src|href)="page/([\w./]+)"', text)]
        beside = re.findall(r'from "(\.[\w./]+)"', text) + re.findall(r'url\("([\w./]+)"\)', text)
        expected += [
            (name, posixpath.normpath(posixpath.join(posixpath.dirname(name), other))) for other in beside
        ]
    return [f"{name} wants {other}" for name, other in expected if other not in files]


def test_every_file_finds_the_others() -> None:
    assert missing(FILES) == []
    assert missing(FILES | {"app.js": 'import { x } from "./gone.js"'}) == ["app.js wants gone.js"]
    assert missing(FILES | {"chat/chat.js": 'import { x } from "../dom.js"'}) == ["chat/chat.js wants dom.js"]


def test_every_element_that_a_script_uses_exists() -> None:
    for html, least in ((INDEX, 25), (CALCULATOR, 2)):
        own = html == CALCULATOR
        scripts = [text for name, text in FILES.items() if name.startswith("calculator/") is own]
        expected = {name for text in scripts for name in re.findall(r'byId\("([\w-]+)"\)', text)}
        assert len(expected) > least
        assert not expected - set(re.findall(r'\bid="([\w-]+)"', FILES[html]))


@pytest.mark.parametrize("name", [INDEX, DOCS, CALCULATOR])
def test_the_page_needs_no_inline_code(name: str) -> None:
    html = FILES[name]
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)
    assert not re.search(r"\son\w+=|\sstyle=|<style", html)


def test_the_page_needs_no_key_and_holds_no_data(tiny: TinyServer) -> None:
    """What the server serves besides the page is the model's name and the engine's state: neither is in the files."""
    answer = httpx.get(f"{tiny.url}/")
    assert answer.status_code == 200
    assert "alias" not in answer.text
