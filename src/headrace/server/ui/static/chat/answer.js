// One answer: its text as it grows, the figures under it, and what can be done with it.

import { count, duration, make, onceAFrame } from "../common/dom.js";
import { GrowingMarkdown } from "./markdown.js";

export class Answer {
  constructor(list, grew) {
    this.usage = null;
    this.reason = null;
    this.stopped = false;
    this.trouble = "";
    this.asked = performance.now();
    this.first = null;
    this.last = null;
    this.pieces = 0;
    this.arrivals = 0; // of pieces that did not come all at once
    this.content = "";
    this.thoughts = "";
    this.grew = grew;
    this.text = make("div", { class: "text" });
    this.waiting = make("span", { class: "waiting", role: "img", "aria-label": "Waiting for the first token" },
      make("i"), make("i"), make("i"));
    this.element = make("li", { class: "message assistant streaming" },
      make("span", { class: "unseen", textContent: "Answer: " }), this.waiting, this.text);
    this.drawn = new GrowingMarkdown(this.text);
    this.draw = onceAFrame(() => {
      this.drawn.grow(this.content);
      this.thinking?.drawn.grow(this.thoughts);
      this.grew();
    });
    list.append(this.element);
    grew();
  }

  arrived() {
    const now = performance.now();
    if (this.last === null || now - this.last > 1) this.arrivals += 1;
    this.last = now;
    this.pieces += 1;
    if (this.first !== null) return;
    this.first = this.last;
    this.waiting.remove();
  }

  write(content) {
    this.arrived();
    this.content = content;
    this.draw();
  }

  think(thought) {
    this.arrived();
    if (!this.thinking) {
      const text = make("div", { class: "text" });
      this.text.before(make("details", { class: "thinking" }, make("summary", { textContent: "Thinking" }), text));
      this.thinking = { drawn: new GrowingMarkdown(text) };
    }
    this.thoughts += thought;
    this.draw();
  }

  complain(sentence) {
    this.trouble = sentence;
    this.box = make("p", { class: "trouble", role: "alert" }, sentence);
    this.element.append(this.box);
  }

  offer(words, act) {
    const button = make("button", { type: "button", textContent: words });
    button.addEventListener("click", act);
    this.box.append(button);
  }

  finish(content, { again }) {
    this.content = content;
    this.waiting.remove();
    this.element.classList.remove("streaming");
    this.drawn.grow(content);
    const foot = make("div", { class: "foot" }, this.figures());
    if (content) foot.append(this.copyButton(content));
    foot.append(this.button(this.trouble ? "Try again" : "Regenerate", again));
    this.element.append(foot);
    this.grew();
  }

  button(words, act) {
    const button = make("button", { type: "button", class: "plain", textContent: words });
    button.addEventListener("click", act);
    return button;
  }

  copyButton(content) {
    const button = this.button("Copy", async () => {
      button.textContent = (await copy(content)) ? "Copied" : "Copying is not allowed here";
      setTimeout(() => (button.textContent = "Copy"), 1800);
    });
    return button;
  }

  /** Seconds to the first token and tokens a second behind it, as this page saw them. */
  figures() {
    const line = make("p", { class: "figures" });
    const add = (value, words) => line.append(make("span", {}, make("b", { textContent: value }), ` ${words}`));
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    if (this.first !== null) add(duration((this.first - this.asked) / 1000), "to first token");
    const seconds = this.first === null ? 0 : (this.last - this.first) / 1000;
    // A page that was busy sees many tokens at once, and cannot tell how fast they came.
    if (this.arrivals > 4 && seconds > 0.02) add(count((tokens - 1) / seconds), "tok/s");
    if (tokens) add(count(tokens), this.reason === "length" ? "tokens, the most allowed" : "tokens");
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (this.usage) add(`${count(cached ?? 0)} of ${count(this.usage.prompt_tokens)}`, "prompt tokens cached");
    if (this.stopped) line.append(make("span", { textContent: "stopped" }));
    return line;
  }

  /** What a screen reader announces, once, when the answer is complete. */
  spoken(content) {
    if (this.trouble) return ""; // the alert has spoken
    return `${this.stopped ? "Answer, stopped" : "Answer"}: ${content || "empty"}`;
  }
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from other machines over plain HTTP have no clipboard; selecting and copying works there, too.
    const area = make("textarea", { value: text, class: "unseen" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
