"""A real browser: Debian's Chromium, driven by Playwright, with a guard over everything that a page does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests import needs
from tests.server.conftest import TinyServer

playwright = needs.package("playwright.sync_api")

from tests.server.ui.visit import NO_OTHER_HOSTS, Tabs, Visit  # noqa: E402  (it needs playwright)


class Chromium:
    """One browser for all tests in a row that take it.

    While Playwright runs, its event loop occupies this thread, so it ends before a test that does without.
    """

    def __init__(self) -> None:
        self._running = ExitStack()
        self._tabs: Tabs | None = None

    def tabs(self) -> Tabs:
        if self._tabs is None:
            path = shutil.which("chromium") or shutil.which("chromium-browser")
            if path is None:
                needs.lacking(
                    "browser", "there is no Chromium on this machine: `make browser` installs Debian's"
                )
            arguments = [NO_OTHER_HOSTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
            driver = self._running.enter_context(playwright.sync_playwright())
            browser = driver.chromium.launch(executable_path=path, args=arguments)
            self._running.callback(browser.close)
            self._tabs = Tabs(browser)
        return self._tabs

    def close(self) -> None:
        self._tabs = None
        self._running.close()


CHROMIUM = Chromium()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if "tabs" not in getattr(nextitem, "fixturenames", ()):
            CHROMIUM.close()


@pytest.fixture
def tabs() -> Tabs:
    return CHROMIUM.tabs()


@pytest.fixture
def chromium(tabs: Tabs) -> Any:
    return tabs.browser


@pytest.fixture
def visit(tabs: Tabs) -> Iterator[Callable[..., Visit]]:
    """Opens the page of a server. What a page did wrong fails the test at its end, unless it was forgiven."""
    visits: list[Visit] = []

    def open_page(url: str, **options: object) -> Visit:
        visits.append(Visit(tabs, url, **options))
        return visits[-1]

    yield open_page
    wrong = [sentence for one in visits for sentence in one.wrong]
    for one in visits:
        one.close()
    assert not wrong, wrong


@pytest.fixture(scope="module")
def slow() -> Iterator[TinyServer]:
    """An engine that gives 40 tokens a second, so that there is time to observe it."""
    server = TinyServer(step_s=0.025)
    yield server
    server.close()


@pytest.fixture(scope="module")
def crowded() -> Iterator[TinyServer]:
    """An engine with room for a few long sequences only."""
    server = TinyServer(step_s=0.01, num_blocks=150)
    yield server
    server.close()


@pytest.fixture
def page(chromium: Any, tiny: TinyServer) -> Iterator[Any]:
    """A tab on the tiny server that may print nothing, raise nothing, and ask no other host."""
    context = chromium.new_context()
    page = context.new_page()
    wrong: list[str] = []
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(tiny.url) else wrong.append(request.url)
    )
    yield page
    context.close()
    assert not wrong, wrong
