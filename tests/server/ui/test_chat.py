"""A person chats: types, watches an answer grow, stops it, tries again, changes settings, and sees errors as text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from headrace.core.snapshot_data import lane_name
from headrace.server.access.keys import Caller
from tests.server.conftest import TinyServer
from tests.server.keyring import keyed, secret
from tests.server.ui.visit import Visit

Open = Callable[..., Visit]


def test_an_answer_grows_and_is_stopped(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    assert one.page.is_visible("#welcome")
    one.say("Tell me something long")
    one.wait(lambda: one.answer)
    first = one.answer
    one.wait(lambda: len(one.answer) > len(first) + 10)
    assert one.answer.startswith(first[:-1])
    assert one.busy and not one.page.is_visible("#send")
    one.page.click("#stop")
    one.wait(lambda: not one.busy)
    stopped = one.answer
    assert "stopped" in one.figures and "to first token" in one.figures
    one.page.wait_for_timeout(300)
    assert one.answer == stopped
    one.wait(lambda: slow.idle)  # the engine is idle
    assert one.page.inner_text(".message.user").endswith("Tell me something long")


@pytest.mark.long
def test_escape_stops_too(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.say("Go on and on")
    one.wait(lambda: one.answer)
    one.page.keyboard.press("Escape")
    one.wait(lambda: not one.busy)
    assert "stopped" in one.figures


@pytest.mark.long
def test_figures_under_an_answer(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.set(max_tokens=12)
    one.say("Count for me, please, and tell me how it went when you have come to the end of it")
    one.wait(lambda: one.figures)
    assert "12 tokens, the most allowed" in one.figures
    assert "s to first token" in one.figures
    assert int(one.figures.split(" tok/s")[0].split()[-1]) > 0
    assert " prompt tokens cached" in one.figures
    one.say("And again")
    one.wait(lambda: not one.busy and len(one.page.locator(".figures").all()) == 2)
    cached = int(one.figures.split(" tokens, the most allowed ")[1].split(" of ")[0])
    assert cached >= 8 and cached % 8 == 0  # whole blocks of the first turn


@pytest.mark.long
def test_regenerate_copy_and_new_chat(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    one.set(max_tokens=9)
    one.say("Hello there")
    one.wait(lambda: one.figures)
    text = one.answer
    one.page.click("text=Copy")
    one.wait(lambda: one.page.is_visible("text=Copied"))
    assert " ".join(one.page.evaluate("navigator.clipboard.readText()").split()) == " ".join(text.split())
    one.page.click("text=Regenerate")
    one.wait(lambda: one.figures and not one.busy)
    assert len(one.page.locator(".message").all()) == 2
    assert [turn["role"] for turn in one.bodies[-1]["messages"]] == ["user"]
    one.page.click("text=New chat")
    assert one.page.is_visible("#welcome") and not one.page.locator(".message").all()


@pytest.mark.long
def test_a_suggestion_is_sent(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.page.click("#ideas button >> nth=0")
    one.wait(lambda: one.answer)
    assert one.page.locator(".message.user").count() == 1
    one.page.keyboard.press("Escape")


@pytest.mark.long
def test_settings_are_sent_and_kept(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.set(max_tokens=3, temperature=0.25, top_p=0.9, seed=11, system="Be brief.")
    one.page.reload()
    one.wait(lambda: one.state == "ready")
    one.wait(lambda: one.page.inner_text("#model-name") == "tiny")
    one.say("Hi")
    one.wait(lambda: one.figures)
    body = one.bodies[-1]
    assert {name: body[name] for name in ("max_tokens", "temperature", "top_p", "seed")} == {
        "max_tokens": 3, "temperature": 0.25, "top_p": 0.9, "seed": 11,
    }  # fmt: skip
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    one.page.click("#open-settings")
    one.page.click("#reset-settings")
    one.page.keyboard.press("Escape")
    one.say("Hi again, at length")
    one.wait(lambda: len(one.bodies) == 2)
    assert not {"max_tokens", "top_p", "seed"} & set(one.bodies[-1])
    assert one.bodies[-1]["temperature"] == 0.7  # as at the first visit
    one.page.keyboard.press("Escape")


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "3"), ("top_p", "0"), ("max_tokens", "0")],
)
def test_settings_out_of_range_are_not_sent(slow: TinyServer, visit: Open, field: str, value: str) -> None:
    one = visit(slow.url, calm=True)
    one.set(**{"max_tokens": 2} | {field: value})
    one.say("Hi")
    one.wait(lambda: one.bodies)
    assert field not in one.bodies[-1]
    one.page.keyboard.press("Escape")


HOSTILE = [
    "<img src=x onerror=\"window.broken='img'\">",
    "<script>window.broken='script'</script>",
    "[click me](javascript:window.broken='link')",
    "**<svg onload=\"window.broken='svg'\">**",
    "```\n</code></pre><iframe srcdoc='<script>parent.broken=1</script>'></iframe>\n```",
    "> <style>*{display:none}</style>",
    "1. <a href='javascript:alert(1)'>x</a>",
    "![x](https://example.com/x.png)",
]


def test_hostile_text_stays_text(slow: TinyServer, visit: Open) -> None:
    """What the visitor writes, and what a model writes, through the code that draws both."""
    one = visit(slow.url, calm=True)
    one.set(max_tokens=2)
    one.say(HOSTILE[0])
    one.wait(lambda: one.figures)
    assert HOSTILE[0] in one.page.inner_text(".message.user")
    drawn = one.page.evaluate(
        """async (texts) => {
          const { markdown } = await import("/page/chat/markdown.js");
          const box = document.querySelector(".message.assistant .text");
          box.replaceChildren(...texts.map((text) => markdown(text)));
          await new Promise((resolve) => setTimeout(resolve, 200));
          return [
            [...box.querySelectorAll("*")].map((element) => element.localName),
            [...box.querySelectorAll("a")].map((link) => link.href),
            box.innerText,
          ];
        }""",
        HOSTILE,
    )
    elements, links, text = drawn
    assert not set(elements) - {
        "p",
        "pre",
        "code",
        "strong",
        "em",
        "br",
        "ul",
        "ol",
        "li",
        "blockquote",
        "h4",
        "a",
    }
    assert links == ["https://example.com/x.png"]
    assert "onerror" in text and "<script>" in text
    assert one.page.evaluate("window.broken") is None

    # The second lock: were a script to try, the policy would stop it.
    with pytest.raises(Exception, match="TrustedHTML"):
        one.page.evaluate("document.body.innerHTML = '<b>x</b>'")
    one.forgive("TrustedHTML")


def test_markdown_is_drawn(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    text = (
        "# Title\n\nA **bold** and *soft* `word`.\nSecond line.\n\n- one\n- two\n\n3. three\n\n"
        "```py\nx = '*'\n\ny\n```\n> said\n> so\nend\rof\u2028it"
    )
    drawn = one.page.evaluate(
        """async (text) => {
          const { markdown } = await import("/page/chat/markdown.js");
          const box = document.createElement("div");
          box.append(markdown(text));
          return [...box.children].map((child) => [child.localName, child.textContent]);
        }""",
        text,
    )
    assert drawn == [
        ["h4", "Title"], ["p", "A bold and soft word.Second line."], ["ul", "onetwo"], ["ol", "three"],
        ["pre", "x = '*'\n\ny"], ["blockquote", "saidso"], ["p", "end\rof\u2028it"],
    ]  # fmt: skip


@pytest.mark.long
def test_thoughts_are_shown_separately(slow: TinyServer, visit: Open) -> None:
    """Through the code that draws answers: the bundled model does not think aloud."""
    one = visit(slow.url, calm=True)
    folded, thoughts, text = one.page.evaluate(
        """async () => {
          const { Answer } = await import("/page/chat/answer.js");
          const answer = new Answer(document.querySelector("#messages"), () => {});
          answer.think("First <b>this</b>, ");
          answer.think("then that.");
          answer.write("The answer.");
          await new Promise((resolve) => setTimeout(resolve, 100));
          answer.finish("The answer.", { again: () => {} });
          const thinking = answer.element.querySelector("details");
          return [!thinking.open, thinking.querySelector(".text").textContent, answer.text.textContent];
        }"""
    )
    assert folded
    assert (thoughts, text) == ("First <b>this</b>, then that.", "The answer.")


@pytest.mark.long
def test_an_error_is_shown_as_text(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.set(max_tokens=5000)
    one.say("Hello")
    one.wait(lambda: one.page.is_visible(".trouble"))
    assert one.page.inner_text(".trouble").startswith("The context holds 512 tokens")
    assert one.page.is_visible("text=Try again")
    one.forgive("400 (Bad Request)")
    one.set(max_tokens=4)
    one.page.click("text=Try again")
    one.wait(lambda: "4 tokens" in one.figures)
    assert not one.page.is_visible(".trouble")


def test_a_dead_engine_and_a_dead_server(doomed: TinyServer, visit: Open) -> None:
    one = visit(doomed.url, calm=True)
    one.say("Go on and on")
    one.wait(lambda: one.answer)
    os.kill(doomed.client.pid, signal.SIGKILL)
    one.wait(lambda: one.page.is_visible(".trouble"))
    assert "engine process was killed by SIGKILL" in one.page.inner_text(".trouble")
    assert one.answer  # what had come stays
    one.wait(lambda: "engine" in one.state)
    one.page.click("text=Try again")
    one.wait(lambda: not one.busy and one.page.is_visible(".trouble"))
    assert one.page.inner_text(".trouble").startswith("The engine is away")
    doomed.close()
    one.page.click("text=Try again")
    one.wait(lambda: "cannot be reached" in one.page.inner_text(".trouble"))
    one.wait(lambda: one.state == "no connection")
    one.forgive("503")
    one.forgive("ERR_")


def test_the_page_asks_for_a_key(visit: Open) -> None:
    server = TinyServer(traffic=keyed(Caller("boss", admin=True)), step_s=0.01)
    try:
        one = visit(server.url, calm=True)
        one.set(max_tokens=4)
        one.wait(lambda: one.state == "needs a key")
        one.say("Hello")
        one.wait(lambda: one.page.is_visible(".trouble"))
        assert "asks for a key" in one.page.inner_text(".trouble")
        one.page.click("text=Enter a key")
        one.page.keyboard.type(secret("boss"))
        one.page.keyboard.press("Escape")
        one.wait(lambda: one.state == "ready")
        one.page.click("text=Try again")
        one.wait(lambda: "tok" in one.figures)
        assert one.answer and not one.page.is_visible(".trouble")
        one.forgive("401 (Unauthorized)")
    finally:
        server.close()


@pytest.mark.long
def test_a_key_without_admin_rights_chats(visit: Open) -> None:
    server = TinyServer(traffic=keyed(Caller("ann")), step_s=0.01)
    try:
        one = visit(server.url, calm=True)
        one.wait(lambda: one.state == "needs a key")
        watched: list[str] = []
        one.page.on("request", lambda request: watched.append(request.url))
        one.set(key=f" {secret('ann')} ", max_tokens=4)  # as it is pasted, with white space
        one.wait(lambda: one.state == "chat only")
        one.wait(lambda: one.page.inner_text("#model-name") == "tiny")
        one.say("Hello")
        one.wait(lambda: "4 tokens" in one.figures)
        asked = len([url for url in watched if url.endswith("/live")])
        one.page.wait_for_timeout(1500)  # the first pause between two tries is half a second
        assert len([url for url in watched if url.endswith("/live")]) == asked == 1
        one.forgive("401 (Unauthorized)")
        one.forgive("403 (Forbidden)")
    finally:
        server.close()


@pytest.mark.long
def test_a_key_in_typographic_quotes_is_named_as_such(visit: Open) -> None:
    server = TinyServer(traffic=keyed(Caller("ann")))
    try:
        one = visit(server.url, calm=True)
        one.wait(lambda: one.state == "needs a key")
        one.set(key=f"“{secret('ann')}”", max_tokens=4)
        one.say("Hello")
        one.wait(lambda: one.page.is_visible(".trouble"))
        assert one.page.inner_text(".trouble").startswith(
            "The key holds the character ““”, which no key has."
        )
        assert one.page.is_visible("text=Enter a key")
        one.forgive("401 (Unauthorized)")
    finally:
        server.close()


def roles(one: Visit) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"][:6]) for turn in one.bodies[-1]["messages"]]


@pytest.mark.long
def test_try_again_on_an_older_answer_asks_its_own_question(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.set(max_tokens=5000)
    one.say("first question")
    one.wait(lambda: one.page.is_visible("text=Try again"))
    one.forgive("400 (Bad Request)")
    one.set(max_tokens=2)
    one.say("second question")
    one.wait(lambda: one.page.locator(".figures").count() == 2 and not one.busy)
    assert roles(one) == [("user", "second")]  # users and assistants take turns
    one.say("third question")
    one.wait(lambda: one.page.locator(".figures").count() == 3 and not one.busy)
    assert [role for role, _ in roles(one)] == ["user", "assistant", "user"]
    one.page.click("text=Try again")
    one.wait(lambda: one.page.locator(".figures").count() == 1 and not one.busy)
    assert roles(one) == [("user", "first ")]
    assert one.page.locator(".message.user").all_inner_texts()[0].endswith("first question")
    assert one.page.locator(".message").count() == 2  # what followed has gone
    one.say("fourth question")
    one.wait(lambda: one.page.locator(".figures").count() == 2 and not one.busy)
    assert [role for role, _ in roles(one)] == ["user", "assistant", "user"]


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "data: [DONE]\n\n"])
def test_a_stream_without_its_last_event_is_no_complete_answer(
    slow: TinyServer, visit: Open, end: str
) -> None:
    one = visit(slow.url, calm=True)
    body = 'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"Half of"}}]}\n\n' + end
    one.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, body=body, headers={"Content-Type": "text/event-stream"}),
    )
    one.say("Hello")
    one.wait(lambda: not one.busy and one.figures)
    assert one.answer == "Half of"
    assert one.page.is_visible(".trouble") == (end == "")
    assert one.page.is_visible("text=Regenerate" if end else "text=Try again")


GROWING = """async ([text, cuts]) => {
  const { GrowingMarkdown, markdown } = await import("/page/chat/markdown.js");
  const box = document.createElement("div"), whole = document.createElement("div");
  const grown = new GrowingMarkdown(box);
  const create = document.createElement.bind(document);
  let made = 0;
  document.createElement = (...all) => { made += 1; return create(...all); };
  const wrong = [];
  for (const cut of cuts) {
    const before = made;
    grown.grow(text.slice(0, cut));
    const cost = made - before;
    whole.replaceChildren(markdown(text.slice(0, cut)));
    made = before + cost;
    if (box.innerHTML !== whole.innerHTML) wrong.push(cut);
  }
  document.createElement = create;
  return [made, whole.querySelectorAll("*").length, wrong];
}"""


CHANGED = """async ([text, cuts]) => {
  const { GrowingMarkdown } = await import("/page/chat/markdown.js");
  const box = document.createElement("div");
  const observer = new MutationObserver(() => {});
  observer.observe(box, { childList: true, characterData: true, subtree: true });
  const grown = new GrowingMarkdown(box);
  let characters = 0;
  for (const cut of cuts) {
    grown.grow(text.slice(0, cut));
    for (const { target, addedNodes } of observer.takeRecords()) {
      for (const node of addedNodes) characters += node.textContent.length;
      if (target.nodeType === Node.TEXT_NODE) characters += target.length;
    }
  }
  return characters;
}"""


@pytest.mark.long
def test_an_answer_that_grows_is_not_drawn_from_its_beginning(slow: TinyServer, visit: Open) -> None:
    """At every cut the result equals one drawn at once; few more elements are created than kept."""
    one = visit(slow.url, calm=True)
    part = (
        "# Title\n\nA **bold** and *soft* `word`.\nSecond line.\n- one\n- two\n\n- three\n1. a\n2. b\n\n> said\n> so\n"
        "```py\nx = 1\n\ny = 2\n```\n\nplain\n\n~~~\n# no title\n~~~\n"
    )
    made, kept, wrong = one.page.evaluate(GROWING, [part * 2, list(range(2 * len(part) + 1))])
    assert wrong == []
    text = part * 40
    made, kept, wrong = one.page.evaluate(GROWING, [text, list(range(0, len(text), 40))])
    assert wrong == [] and kept > 600
    assert made < 6 * kept  # drawn from the beginning each time it would be a hundred times as many


LONG_BLOCKS = {
    "bullets": "".join(f"- item **{i}** of `many`\n" for i in range(150)),
    "numbers": "".join(f"{i}. item *{i}*\n" for i in range(1, 151)),
    "paragraph": "".join(f"line {i} of **one** paragraph\n" for i in range(150)),
    "quote": "".join(f"> line {i} of `one` quote\n" for i in range(150)),
    "code": "```py\n" + "".join(f"x{i} = '**'\n\n" for i in range(150)) + "```\n",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", LONG_BLOCKS)
def test_one_long_block_that_grows_is_not_drawn_from_its_beginning(
    slow: TinyServer, visit: Open, kind: str
) -> None:
    """Elements and text nodes made are counted; every kind of block grows by its lines."""
    one = visit(slow.url, calm=True)
    text = LONG_BLOCKS[kind]
    _, _, wrong = one.page.evaluate(GROWING, [text[:600], list(range(601))])
    assert wrong == []
    made, kept, wrong = one.page.evaluate(GROWING, [text, list(range(0, len(text) + 1, 10))])
    assert wrong == [] and (kept > 150 or kind == "code")
    assert made < 6 * kept
    drawn = one.page.evaluate(CHANGED, [text, list(range(0, len(text) + 1, 10))])
    assert drawn < 20 * len(text)  # characters; drawn from the beginning each time, a hundred times as many


@pytest.mark.long
def test_the_page_knows_its_own_lane(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    ids = ["chatcmpl-0123456789abcdef", "cmpl-é", "resp-1", "whatever"]
    names = one.page.evaluate(
        'async (ids) => { const { laneName } = await import("/page/engine/names.js"); return ids.map(laneName); }',
        ids,
    )
    assert names == [lane_name(f"{answer}-0") for answer in ids]


@pytest.mark.long
def test_the_guard_sees_what_a_page_does_wrong(slow: TinyServer, visit: Open) -> None:
    one = visit(slow.url, calm=True)
    one.page.evaluate("console.error('planted')")
    one.page.evaluate("fetch('http://example.test/x').catch(() => {})")
    one.wait(lambda: any("planted" in sentence for sentence in one.wrong))
    one.wait(lambda: any("Content Security Policy" in sentence for sentence in one.wrong))
    one.page.evaluate("() => { setTimeout(() => { throw new Error('thrown'); }); }")
    one.wait(lambda: any("thrown" in sentence for sentence in one.wrong))
    one.page.goto("about:blank")
    one.page.evaluate("fetch('http://example.test/y').catch(() => {})")
    one.wait(lambda: any("another origin: http://example.test/y" in sentence for sentence in one.wrong))
    one.wrong.clear()
