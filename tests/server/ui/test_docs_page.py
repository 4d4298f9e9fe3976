"""/docs shows /openapi.json to people."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from headrace.server.access.keys import Caller
from headrace.server.ui.openapi import operations
from tests.server.conftest import TinyServer
from tests.server.keyring import keyed, secret

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def locked() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(Caller("ann")))
    yield server
    server.close()


@pytest.mark.long
def test_the_key_of_the_chat_page_is_used(chromium: Browser, locked: TinyServer) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{locked.url}/docs")
    page.wait_for_selector("[role=alert]")
    assert "API key" in (page.text_content("main") or "")
    page.evaluate("key => localStorage.setItem('headrace.settings', JSON.stringify({ key }))", secret("ann"))
    show(page, locked.url)
    assert page.locator("#ChatRequest").count() == 1
    context.close()


def show(page: Page, url: str) -> None:
    page.goto(f"{url}/docs")
    page.wait_for_selector("main details")


def test_it_shows_every_route_and_object(page: Page, tiny: TinyServer) -> None:
    show(page, tiny.url)
    document = tiny.app.openapi()
    routes = [f"{method.upper()}{path}" for method, path, _ in operations(document)]
    names = sorted(document["components"]["schemas"])
    assert [text.strip() for text in page.locator("summary").all_text_contents()] == [*routes, *names]
    links = page.eval_on_selector_all("main a", "links => links.map((link) => link.hash.slice(1))")
    assert links and set(links) <= set(names)
    detokenize = page.locator("#DetokenizeRequest").text_content()
    assert "tokens *list of integer (≥ 0, ≤ 2047)" in (detokenize or "")


@pytest.mark.long
def test_a_link_opens_its_object(page: Page, tiny: TinyServer) -> None:
    show(page, tiny.url)
    page.click("summary:has-text('/v1/chat/completions')")
    assert not page.locator("#ChatRequest").evaluate("element => element.open")
    page.click("details[open] a[href='#ChatRequest']")
    page.wait_for_selector("#ChatRequest[open]")


@pytest.mark.long
def test_text_of_the_document_stays_text(page: Page, tiny: TinyServer) -> None:
    evil = {
        "info": {"title": EVIL, "version": EVIL, "description": EVIL},
        "paths": {f"/{EVIL}": {"get": {"description": EVIL, "responses": {"200": {"description": EVIL}}}}},
        "components": {"schemas": {EVIL: {"description": EVIL, "properties": {EVIL: {"enum": [EVIL]}}}}},
    }
    page.route("**/openapi.json", lambda route: route.fulfill(body=json.dumps(evil)))
    show(page, tiny.url)
    assert page.locator("img").count() == 0
    assert (page.text_content("main") or "").count(EVIL) >= 6
