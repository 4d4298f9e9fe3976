// A bounded handful of requests with one beginning, so that a newcomer sees lanes, sharing and preemption move.

import { byId, count, percent, plural } from "../common/dom.js";
import { events, post, Refusal, sentence } from "../common/server.js";

const PREFACE =
  "You are a friendly teller of stories for children. You speak in short and simple sentences. You like animals, weather, " +
  "rivers, bridges, mills and boats, and the people who keep them. In your stories somebody wants something, meets a trouble, " +
  "finds a helper, and in the end shares what was won. You never hurry, you never scold, and you always answer with a story. " +
  "When you are asked for a thing that you do not know, you make it up and say that you did.\n\n";

const WISHES = [
  "a fox and a lantern", "a duck and a drum", "a bear and a kite", "a mouse and a boat", "a crow and a mirror",
  "a goat and a bell", "an otter and a stone", "a hare and a clock", "an owl and a map", "a hen and a ladder",
  "a mole and a candle", "a swan and a shoe", "a wolf and a whistle", "a bee and a button", "a cat and a cloud",
  "a horse and a hat", "a frog and a flute", "a snail and a sail", "a dog and a door", "a lamb and a lamp",
];

// Browsers keep six connections to a server: four for these, one for the feed, and one for the chat. Each connection
// carries waves of several requests, one wave after the other; short and long ones are at work at the same time.
const CONNECTIONS = [
  { after_ms: 0, waves: [{ size: 4, tokens: 500 }, { size: 7, tokens: 120 }, { size: 3, tokens: 620 }] },
  { after_ms: 350, waves: [{ size: 6, tokens: 160 }, { size: 5, tokens: 380 }, { size: 6, tokens: 90 }] },
  { after_ms: 700, waves: [{ size: 3, tokens: 640 }, { size: 6, tokens: 200 }, { size: 4, tokens: 320 }] },
  { after_ms: 1100, waves: [{ size: 5, tokens: 260 }, { size: 3, tokens: 560 }, { size: 5, tokens: 140 }] },
];
const NO_MORE_AFTER_MS = 15_000; // on a slow machine the later waves are left out
const LONGEST_MS = 90_000;

export class Traffic {
  /** `length` gives the model's context in tokens, null without a bound; `preemptions` the engine's count. */
  constructor({ settings, length, preemptions }) {
    Object.assign(this, { settings, length, preemptions });
    this.button = byId("traffic");
    this.running = null;
    this.button.addEventListener("click", () => (this.running ? this.running.abort() : this.run()));
  }

  tell(text) {
    byId("traffic-status").textContent = text;
  }

  async run() {
    const running = new AbortController();
    this.running = running;
    this.button.textContent = "Stop the traffic";
    this.tell("Requests with one common beginning are on their way.");
    this.sent = 0;
    this.started = performance.now();
    const limit = setTimeout(() => running.abort(), LONGEST_MS);
    const before = this.preemptions();
    const usages = [];
    const outcomes = await Promise.allSettled(CONNECTIONS.map((one) => this.connection(one, usages, running.signal)));
    clearTimeout(limit);
    this.running = null;
    this.button.textContent = "Make some traffic";
    // The last tick may be older than the last answer.
    setTimeout(() => this.tell(this.summary(outcomes, usages, this.preemptions() - before)), 400);
  }

  async connection({ after_ms: pause, waves }, usages, signal) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    for (const wave of waves) {
      signal.throwIfAborted();
      if (performance.now() - this.started > NO_MORE_AFTER_MS) return;
      usages.push(await this.wave(wave, signal));
    }
  }

  async wave({ size, tokens }, signal) {
    const wishes = Array.from({ length: size }, () => WISHES[this.sent++ % WISHES.length]);
    const most = this.length();
    const body = {
      model: this.settings.request.model,
      prompt: wishes.map((wish) => `${PREFACE}Tell a story about ${wish}.\n`),
      max_tokens: most === null ? tokens : Math.max(1, Math.min(tokens, Math.floor(most / 2))),
      temperature: 0.8,
      ignore_eos: true,
      stream: true, // or there would be no first token to wait for
      stream_options: { include_usage: true },
    };
    const response = await post("v1/completions", body, this.settings.key, signal);
    let usage = null;
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Refusal(sentence(String(chunk.error.message)), 500);
      usage = chunk.usage ?? usage;
    }
    if (usage === null) throw new Refusal("An answer broke off before its end.", 0);
    return usage;
  }

  summary(outcomes, usages, preemptions) {
    const failed = outcomes.find((outcome) => outcome.status === "rejected");
    if (failed) return failed.reason instanceof Refusal ? failed.reason.message : "The traffic was stopped.";
    const sum = (read) => usages.reduce((total, usage) => total + read(usage), 0);
    const prompt = sum((usage) => usage.prompt_tokens);
    const cached = sum((usage) => usage.prompt_tokens_details?.cached_tokens ?? 0);
    const memory = preemptions > 0
      ? `${plural(preemptions, "preemption")}, as memory ran short`
      : "memory sufficed, so none was preempted";
    return (
      `${plural(this.sent, "request")}, ${count(sum((usage) => usage.completion_tokens))} tokens; ` +
      `${percent(cached / prompt)} of the prompts came from the prefix cache; ${memory}.`
    );
  }
}
