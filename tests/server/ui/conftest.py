"""A real browser: Debian's Chromium, driven by Playwright, with a guard over everything that a page does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import needs
from tests.server.conftest import TinyServer

playwright = needs.package("playwright.sync_api")

from tests.server.ui.visit import NO_OTHER_HOSTS, Tabs, Visit  # noqa: E402  (it needs playwright)


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """One browser a module: while Playwright runs, its event loop occupies this thread."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        needs.lacking("browser", "there is no Chromium on this machine: `make browser` installs Debian's")
    arguments = [NO_OTHER_HOSTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tabs(chromium: Any) -> Tabs:
    return Tabs(chromium)


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
