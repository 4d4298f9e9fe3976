"""One visit to the page, watched: errors in the console, and requests to other hosts.

Visits take turns in a few tabs, as starting a renderer takes longer than most tests; a tab that is free has forgotten
the visit before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

PATIENCE_S = 20.0
LOOK_MS = 40
"""Pause between two looks at a page that a test waits for."""


NO_OTHER_HOSTS = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
"""A guard that only sees a request to another host comes too late: it must not get there."""


class Tabs:
    """The tabs of one browser."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._free: list[Page] = []

    def take(self) -> Page:
        return self._free.pop() if self._free else self.browser.new_context().new_page()

    def give_back(self, page: Page) -> None:
        """Forget what the visit has stored, was allowed and has routed."""
        page.unroute_all(behavior="ignoreErrors")
        page.context.clear_permissions()
        page.context.clear_cookies()
        if page.url != "about:blank":
            page.evaluate("localStorage.clear(); sessionStorage.clear()")
            page.goto("about:blank")
        self._free.append(page)


class Visit:
    """`wrong` collects what a page must not do."""

    def __init__(
        self,
        tabs: Tabs,
        url: str,
        *,
        width: int = 1280,
        height: int = 860,
        theme: str = "light",
        calm: bool = False,
    ) -> None:
        """`calm` asks for reduced motion, for tests of other things: what moves is drawn thirty times a second."""
        self.url = url
        self.wrong: list[str] = []
        self.bodies: list[dict[str, Any]] = []  # of the requests that the page posts
        self._tabs = tabs
        self.page: Page = tabs.take()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce" if calm else "no-preference",
        )
        self._watched: dict[Any, Callable[..., None]] = {
            "request": self._asked, "console": self._said, "pageerror": self._failed,
        }  # fmt: skip
        for event, watch in self._watched.items():
            self.page.on(event, watch)
        self.page.goto(f"{url}/")
        self.wait(lambda: self.state not in ("connecting", ""))

    def _asked(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https") and address.netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"request to another origin: {request.url}")
        if request.method == "POST" and request.post_data:
            self.bodies.append(json.loads(request.post_data))

    def _failed(self, error: Error) -> None:
        self.wrong.append(f"error: {error}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console {message.type}: {message.text}")

    def forgive(self, part: str) -> None:
        """Take out what was meant to happen; at least one such thing must be there."""
        kept = [sentence for sentence in self.wrong if part not in sentence]
        assert len(kept) < len(self.wrong), f"nothing with {part!r} in {self.wrong}"
        self.wrong = kept

    def close(self) -> None:
        for event, watch in self._watched.items():
            self.page.remove_listener(event, watch)
        self._tabs.give_back(self.page)

    # ---- What a person sees and does ----

    @property
    def state(self) -> str:
        return self.page.inner_text("#state-text")

    @property
    def answer(self) -> str:
        """The text of the last answer."""
        found = self.page.locator(".message.assistant .text").all_inner_texts()
        return found[-1] if found else ""

    @property
    def figures(self) -> str:
        found = self.page.locator(".message.assistant .figures").all_inner_texts()
        return " ".join(found[-1].split()) if found else ""

    @property
    def busy(self) -> bool:
        return self.page.is_visible("#stop")

    def say(self, text: str) -> None:
        """Type a message and send it with the Enter key."""
        self.page.click("#prompt")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def set(self, **fields: object) -> None:
        """Fill in the settings and close them."""
        self.page.click("#open-settings")
        for name, value in fields.items():
            self.page.fill(f"[name={name}]", str(value))
        self.page.keyboard.press("Escape")

    def wait(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Look again and again until the condition holds."""
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, (
                f"timed out; state {self.state!r}, answer {self.answer[:200]!r}, wrong {self.wrong}"
            )
            self.page.wait_for_timeout(LOOK_MS)

    def picture(self, selector: str) -> str:
        """What is drawn on a canvas now, as a data URL."""
        drawn: str = self.page.eval_on_selector(selector, "canvas => canvas.toDataURL()")
        return drawn

    def colours(self, selector: str) -> int:
        """How many different colours a canvas shows."""
        found: int = self.page.eval_on_selector(
            selector,
            """canvas => {
              const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
              return new Set(new Uint32Array(data.buffer)).size;
            }""",
        )
        return found
