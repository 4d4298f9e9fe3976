// The conversation: what was said, what is being said, and the buttons around it.

import { Answer } from "./answer.js";
import { byId, make, onceAFrame } from "../common/dom.js";
import { events, post, Refusal, sentence } from "../common/server.js";

const GENERAL = ["Tell me a short story.", "Explain how a water wheel works.", "Write four lines about rain."];
const STORYTELLER = [
  "Tell me a story about a fox who wants a lantern.",
  "Tell me a short story about a duck and a drum.",
  "Hello! What can you do?",
];

export class Chat {
  constructor(settings, { answered }) {
    this.settings = settings;
    this.answered = answered; // called with the id of each answer
    this.exchanges = []; // {question, answer}, the answer empty until some of it has come
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
    byId("welcome").hidden = this.exchanges.length > 0;
    byId("clear").disabled = this.exchanges.length === 0;
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }

  send(text) {
    const content = text.trim();
    if (!content || this.running) return;
    const exchange = { question: content, answer: "" };
    this.exchanges.push(exchange);
    this.list.append(make("li", { class: "message user" }, make("span", { class: "unseen", textContent: "You: " }), content));
    this.prompt.value = "";
    this.prompt.focus();
    this.answer(exchange);
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.exchanges = [];
    this.list.replaceChildren();
    this.refresh();
    this.prompt.focus();
  }

  /** What the model is sent: users and assistant take turns, so a question without an answer is left out. */
  get messages() {
    const { system } = this.settings;
    const turns = this.exchanges.flatMap(({ question, answer }, at) => {
      const asked = { role: "user", content: question };
      if (answer) return [asked, { role: "assistant", content: answer }];
      return at === this.exchanges.length - 1 ? [asked] : [];
    });
    return system ? [{ role: "system", content: system }, ...turns] : turns;
  }

  /** Asks for the answer to the last question, and shows it as it comes. */
  async answer(exchange) {
    const running = new AbortController();
    this.running = running;
    const exchanges = this.exchanges;
    const answer = new Answer(this.list, () => this.keepUp());
    this.follow = true;
    this.refresh();
    try {
      await this.read(answer, exchange, running.signal);
    } catch (error) {
      if (error.name === "AbortError") answer.stopped = true;
      else this.complain(answer, error);
    }
    if (this.running === running) this.running = null;
    if (this.exchanges !== exchanges) return; // a new chat was begun meanwhile
    answer.finish(exchange.answer, { again: () => this.again(answer, exchange) });
    byId("spoken").textContent = answer.spoken(exchange.answer);
    this.refresh();
  }

  async read(answer, exchange, signal) {
    const { request, key } = this.settings;
    const body = { ...request, messages: this.messages, stream: true, stream_options: { include_usage: true } };
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
        exchange.answer += choice.delta.content;
        answer.write(exchange.answer);
      }
    }
  }

  complain(answer, error) {
    const known = error instanceof Refusal;
    const needsKey = known && (error.status === 401 || error.status === 403);
    answer.complain(known ? error.message : "Something went wrong in this page.");
    if (needsKey) answer.offer(error.status === 401 ? "Enter a key" : "Use another key", () => this.settings.open("key"));
    if (!known) console.error(error);
  }

  /** Asks the same question again; what followed it goes. */
  again(answer, exchange) {
    if (this.running) return;
    this.exchanges.length = this.exchanges.indexOf(exchange) + 1;
    exchange.answer = "";
    while (answer.element.nextSibling) answer.element.nextSibling.remove();
    answer.element.remove();
    this.prompt.focus();
    this.answer(exchange);
  }
}
