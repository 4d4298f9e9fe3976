// The conversation: what was said, what is being said, and the buttons around it.

import { Answer } from "./answer.js";
import { byId, make, onceAFrame } from "./dom.js";
import { events, post, Refusal, sentence } from "./server.js";

const GENERAL = ["Tell me a short story.", "Explain how a water wheel works.", "Write four lines about rain."];
const STORYTELLER = [
  "Tell me a story about a fox who wants a lantern.",
  "Tell me a short story about a duck and a drum.",
  "Hello! What can you do?",
];

export class Chat {
  constructor(settings, { answered }) {
    this.settings = settings;
    this.answered = answered; // is told the id of each answer
    this.turns = []; // {role, content}
    this.running = null; // AbortController of the answer that is being written
    this.list = byId("messages");
    this.scroll = byId("scroll");
    this.prompt = byId("prompt");
    this.follow = true;
    this.keepUp = onceAFrame(() => {
      if (this.follow) this.scroll.scrollTop = this.scroll.scrollHeight;
    });
    this.listen();
    this.refresh();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.prompt.value);
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send(this.prompt.value);
    });
    this.prompt.addEventListener("input", () => this.refresh());
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running && !byId("settings").open) this.stop();
    });
    this.scroll.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.scroll;
      this.follow = scrollHeight - scrollTop - clientHeight < 60;
    });
  }

  /** What the model is good at. */
  suggest(isStoryteller) {
    byId("hello-more").textContent = isStoryteller
      ? "Tale is a small model that tells stories. Everything here runs on this machine."
      : "The model runs on this machine, and the engine shows its work beside.";
    const ideas = (isStoryteller ? STORYTELLER : GENERAL).map((idea) => {
      const button = make("button", { type: "button", textContent: idea });
      button.addEventListener("click", () => this.send(idea));
      return make("li", {}, button);
    });
    byId("ideas").replaceChildren(...ideas);
  }

  refresh() {
    const busy = this.running !== null;
    byId("send").hidden = busy;
    byId("send").disabled = !this.prompt.value.trim();
    byId("stop").hidden = !busy;
    byId("welcome").hidden = this.turns.length > 0;
    byId("clear").disabled = this.turns.length === 0;
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }

  send(text) {
    const content = text.trim();
    if (!content || this.running) return;
    this.turns.push({ role: "user", content });
    this.list.append(make("li", { class: "message user" }, make("span", { class: "unseen", textContent: "You: " }), content));
    this.prompt.value = "";
    this.prompt.focus();
    this.answer();
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.list.replaceChildren();
    this.refresh();
    this.prompt.focus();
  }

  /** Asks for an answer to the turns so far, and shows it as it comes. */
  async answer() {
    const running = new AbortController();
    this.running = running;
    const turns = this.turns;
    const turn = { role: "assistant", content: "" };
    const answer = new Answer(this.list, () => this.keepUp());
    this.follow = true;
    this.refresh();
    try {
      await this.read(answer, turn, running.signal);
    } catch (error) {
      if (error.name === "AbortError") answer.stopped = true;
      else this.complain(answer, error);
    }
    if (this.running === running) this.running = null;
    if (this.turns !== turns) return; // a new chat was begun meanwhile
    if (turn.content) turns.push(turn);
    answer.finish(turn.content, { again: () => this.again(answer, turn) });
    byId("spoken").textContent = answer.spoken(turn.content);
    this.refresh();
  }

  async read(answer, turn, signal) {
    const { system, request, key } = this.settings;
    const messages = system ? [{ role: "system", content: system }, ...this.turns] : [...this.turns];
    const body = { ...request, messages, stream: true, stream_options: { include_usage: true } };
    const response = await post("v1/chat/completions", body, key, signal);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Refusal(sentence(String(chunk.error.message)), 500);
      if (chunk.id) this.answered(chunk.id);
      if (chunk.usage) answer.usage = chunk.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      if (choice.finish_reason) answer.reason = choice.finish_reason;
      const thought = choice.delta?.reasoning_content ?? choice.delta?.reasoning;
      if (thought) answer.think(thought);
      if (choice.delta?.content) {
        turn.content += choice.delta.content;
        answer.write(turn.content);
      }
    }
  }

  complain(answer, error) {
    const known = error instanceof Refusal;
    const needsKey = known && (error.status === 401 || error.status === 403);
    answer.complain(known ? error.message : "Something went wrong in this page.");
    if (needsKey) answer.offer("Enter a key", () => this.settings.open("key"));
    if (!known) console.error(error);
  }

  /** Writes the last answer anew. */
  again(answer, turn) {
    if (this.running) return;
    const at = this.turns.indexOf(turn);
    if (at >= 0) {
      this.turns.length = at;
      while (answer.element.nextSibling) answer.element.nextSibling.remove();
    }
    answer.element.remove();
    this.prompt.focus();
    this.answer();
  }
}
