"""One visit to the page, watched: errors in the console, and requests to other hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Route

PATIENCE_S = 20.0


class Visit:
    """`wrong` collects what a page must not do."""

    def __init__(
        self,
        chromium: Browser,
        url: str,
        *,
        width: int = 1280,
        height: int = 860,
        theme: str = "light",
        calm: bool = False,
    ) -> None:
        self.url = url
        self.wrong: list[str] = []
        self.bodies: list[dict[str, Any]] = []  # of the requests that the page posts
        self.context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce" if calm else "no-preference",
        )
        self.context.route("**/*", self._guard)
        self.page: Page = self.context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.goto(f"{url}/")
        self.wait(lambda: self.state not in ("connecting", ""))

    def _guard(self, route: Route) -> None:
        request = route.request
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"request to another origin: {request.url}")
            route.abort()
            return
        if request.method == "POST" and request.post_data:
            self.bodies.append(json.loads(request.post_data))
        route.continue_()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console {message.type}: {message.text}")

    def forgive(self, part: str) -> None:
        """Take out what was meant to happen; at least one such thing must be there."""
        kept = [sentence for sentence in self.wrong if part not in sentence]
        assert len(kept) < len(self.wrong), f"nothing with {part!r} in {self.wrong}"
        self.wrong = kept

    def close(self) -> None:
        self.context.close()

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
            self.page.wait_for_timeout(20)

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
