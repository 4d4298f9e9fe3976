"""For keyboards and screen readers: everything can be reached, has a name, and is announced once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.conftest import TinyServer
from tests.server.ui.visit import Visit

Open = Callable[..., Visit]

# What an audit would find first: controls and images without a name, ids that are there twice, headings that skip a
# level, landmarks that are missing, references to nothing.
AUDIT = """() => {
  const wrong = [];
  const named = (element) => {
    const by = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id));
    const labels = [...(element.labels ?? [])];
    return [element.getAttribute("aria-label"), ...by.map((other) => other?.textContent),
      ...labels.map((label) => label.textContent), element.textContent].some((text) => text?.trim());
  };
  for (const element of document.querySelectorAll(
    "button, input, select, textarea, summary, a, dialog, section, [role=img], [role=tablist], [role=region], table")) {
    if (!named(element)) wrong.push(`${element.localName}#${element.id} has no name`);
  }
  for (const canvas of document.querySelectorAll("canvas, svg")) {
    if (!canvas.closest("[aria-hidden=true]") && canvas.getAttribute("role") !== "img") {
      wrong.push(`${canvas.localName}#${canvas.id} is neither hidden nor an image`);
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids.filter((one, at) => ids.indexOf(one) !== at)) wrong.push(`the id ${id} is there twice`);
  for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(" ")) {
        if (!document.getElementById(id)) wrong.push(`${name} leads to ${id}, which is not there`);
      }
    }
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((heading) => Number(heading.localName[1]));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push("there must be one h1");
  levels.forEach((level, at) => {
    if (at && level > levels[at - 1] + 1) wrong.push(`a heading skips a level: h${levels[at - 1]}, h${level}`);
  });
  for (const landmark of ["main", "header"]) {
    if (document.querySelectorAll(landmark).length !== 1) wrong.push(`there must be one ${landmark}`);
  }
  if (document.documentElement.lang !== "en") wrong.push("the page names no language");
  return wrong;
}"""

# Visible text against its background colour.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const read = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => colour.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const ground = read(getComputedStyle(at).backgroundColor);
      if (ground[3] === 255) return ground;
    }
    return [255, 255, 255, 255];
  };
  const wrong = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility({ opacityProperty: true })) continue;
    if (element.closest(".unseen, noscript, option")) continue;
    seen += 1;
    const style = getComputedStyle(element);
    const [low, high] = [light(read(style.color)), light(background(element))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) wrong.push(`${ratio.toFixed(2)}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  if (seen < 20) wrong.push(`only ${seen} texts were checked`);
  return wrong;
}"""


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_an_audit_finds_nothing(slow: TinyServer, visit: Open, theme: str, width: int) -> None:
    one = visit(slow.url, theme=theme, width=width)
    one.set(max_tokens=5000)
    one.say("too much")
    one.wait(lambda: one.page.is_visible(".trouble"))
    one.forgive("400 (Bad Request)")
    one.set(max_tokens=6)
    one.say("Hello")
    one.wait(lambda: one.figures.count("tokens") and not one.busy)
    assert one.page.evaluate(AUDIT) == []
    assert one.page.evaluate(CONTRAST) == []
    if width < 900:
        one.page.click("#tab-engine")
        assert one.page.evaluate(CONTRAST) == []
    one.page.click("#open-settings")
    assert one.page.evaluate(AUDIT) == []


PLANTS = [
    ("document.querySelector('label[for=prompt]').remove()", AUDIT, "textarea#prompt has no name"),
    ("document.querySelector('#stop').removeAttribute('aria-label')", AUDIT, "button#stop has no name"),
    ("document.querySelector('#lanes').removeAttribute('role')", AUDIT, "neither hidden nor an image"),
    ("document.querySelector('#clear').id = 'send'", AUDIT, "the id send is there twice"),
    ("document.querySelector('#chat-title').remove()", AUDIT, "leads to chat-title"),
    ("document.documentElement.style.setProperty('--quiet', '#9fb0b4')", CONTRAST, "Time|First token|Queue"),
]


@pytest.mark.parametrize(
    ("plant", "audit", "sentence"),
    [pytest.param(*plant, id=plant[2], marks=pytest.mark.long) for plant in PLANTS],
)
def test_the_audit_notices_a_planted_fault(
    slow: TinyServer, visit: Open, plant: str, audit: str, sentence: str
) -> None:
    one = visit(slow.url)
    one.page.evaluate(plant)
    found = one.page.evaluate(audit)
    assert any(part in line for line in found for part in sentence.split("|")), found


FOCUSED = """() => {
  const element = document.activeElement;
  if (element === document.body) return null;
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  const around = getComputedStyle(element.closest(".composer") ?? element);
  return {
    name: element.id || element.getAttribute("aria-label") || element.textContent.trim(),
    seen: box.width > 0 && box.height > 0 && box.top < innerHeight && box.bottom > 0,
    marked: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2) || around.boxShadow.includes("3px"),
  };
}"""


def walk(one: Visit) -> list[dict[str, object]]:
    """Every stop of the Tab key from the start of the page to its end."""
    stops: list[dict[str, object]] = []
    one.page.focus(".skip")
    one.page.keyboard.press("Shift+Tab")  # out of the page, and in again by its front door
    for _ in range(60):
        one.page.keyboard.press("Tab")
        stop = one.page.evaluate(FOCUSED)
        if stop is None or (stops and stop["name"] == stops[0]["name"]):
            break
        stops.append(stop)
    return stops


@pytest.mark.long
def test_everything_is_reached_by_keyboard_and_marked(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url)
    one.set(max_tokens=4)
    one.say("Hello")
    one.wait(lambda: one.figures)
    one.page.reload()
    one.wait(lambda: one.state == "ready")
    one.say("Hello")
    one.wait(lambda: one.figures and not one.busy)
    one.page.fill("#prompt", "more")
    stops = walk(one)
    names = [stop["name"] for stop in stops]
    assert names[0] == "Skip to the message field"
    required = [
        "theme",
        "open-settings",
        "scroll",
        "Copy",
        "Regenerate",
        "prompt",
        "send",
        "clear",
        "traffic",
        "As a table",
    ]
    assert [name for name in names if name in required] == required
    assert any("Arrow keys" in str(name) for name in names)  # the block map
    assert [stop["name"] for stop in stops if not (stop["seen"] and stop["marked"])] == []


@pytest.mark.long
def test_a_lost_mark_is_noticed(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url)
    one.page.evaluate("document.querySelector('#theme').style.outline = 'none'")
    assert [stop["name"] for stop in walk(one) if not stop["marked"]] == ["theme"]


@pytest.mark.long
def test_a_chat_without_a_mouse(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url)
    keys = one.page.keyboard
    keys.press("Tab")
    keys.press("Enter")  # the skip link
    one.wait(lambda: one.page.evaluate("document.activeElement.id === 'prompt'"))
    keys.type("Tell me something")
    keys.press("Shift+Enter")
    keys.type("in two lines")
    assert one.page.input_value("#prompt") == "Tell me something\nin two lines"
    keys.press("Enter")
    one.wait(lambda: one.answer)
    keys.press("Escape")
    one.wait(lambda: not one.busy)
    assert one.bodies[0]["messages"][0]["content"] == "Tell me something\nin two lines"
    assert one.page.evaluate("document.activeElement.id") == "prompt"


@pytest.mark.long
def test_the_settings_trap_and_restore_the_focus(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url)
    one.page.focus("#open-settings")
    one.page.keyboard.press("Enter")
    one.wait(lambda: one.page.evaluate("document.querySelector('#settings').open"))
    inside = (
        "[null, document.querySelector('#settings')].includes(document.activeElement.closest('dialog, main'))"
    )
    for _ in range(12):
        one.page.keyboard.press("Tab")
        assert one.page.evaluate(inside)
    one.page.keyboard.press("Escape")
    one.wait(lambda: one.page.evaluate("!document.querySelector('#settings').open"))
    assert one.page.evaluate("document.activeElement.id") == "open-settings"


@pytest.mark.long
def test_views_are_chosen_by_arrow_keys(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, width=390)
    one.page.focus("#tab-chat")
    one.page.keyboard.press("ArrowRight")
    assert one.page.evaluate("document.activeElement.id") == "tab-engine"
    assert one.page.is_visible("#engine")
    one.page.keyboard.press("ArrowLeft")
    assert one.page.is_visible("#chat") and not one.page.is_visible("#engine")


@pytest.mark.long
def test_an_answer_is_announced_once_when_complete(slow: TinyServer, visit: Open) -> None:
    """Not token by token: a screen reader would never get to the end."""
    one = visit(slow.url)
    one.set(max_tokens=60)
    one.page.evaluate(
        """() => {
          window.announced = [];
          const spoken = document.querySelector("#spoken");
          const observer = new MutationObserver(() => window.announced.push(spoken.textContent));
          observer.observe(spoken, { childList: true, subtree: true });
        }"""
    )
    one.say("Hello")
    one.wait(lambda: len(one.answer) > 10)
    assert one.page.evaluate("window.announced") == []
    one.wait(lambda: not one.busy)
    (announced,) = one.page.evaluate("window.announced")
    assert announced.startswith("Answer: ") and " ".join(announced.split()).endswith(
        " ".join(one.answer.split())
    )
    live = one.page.evaluate(
        "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]')].map((one) => one.id)"
    )
    assert "messages" not in live and "scroll" not in live
