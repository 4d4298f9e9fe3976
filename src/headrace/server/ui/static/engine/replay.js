// Replays a file of `headrace simulate --timeline`: the same pictures as from a live engine, in place of them.

import { byId, make } from "../common/dom.js";

const VERSION = 1;
const MAX_BYTES = 320_000_000;
const MAX_LINE = 4_000_000;
const FRAME_MS = 50;
const BEFORE = 80; // pictures before the one that was chosen, from which lanes are put together
const SPEEDS = [0.1, 0.5, 1, 2, 5, 20, 100];

export class Replay {
  /** `show` gets each picture and whether it is the last one for now, `reset` is called before the time jumps, `clock`
   * with the speed, and `left` when the page goes back to the live engine. */
  constructor({ show, reset, clock, left }) {
    Object.assign(this, { show, reset, clock, left });
    this.replicas = null; // for each, its pictures as text
    this.timer = null;
    const file = byId("replay-file");
    byId("replay-open").addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      if (file.files[0]) this.open(file.files[0]);
      file.value = ""; // so that the same file can be opened again
    });
    byId("replay-play").addEventListener("click", () => (this.timer === null ? this.play() : this.pause()));
    byId("replay-at").addEventListener("input", (event) => this.seek(Number(event.target.value)));
    byId("replay-replica").addEventListener("change", () => this.seek(this.at));
    byId("replay-speed").addEventListener("change", () => this.clock(this.timer === null ? 0 : this.speed));
    byId("replay-close").addEventListener("click", () => this.close());
    byId("replay-speed").replaceChildren(
      ...SPEEDS.map((speed) => make("option", { value: String(speed), textContent: `${speed} ×`, selected: speed === 1 })),
    );
  }

  get active() {
    return this.replicas !== null;
  }

  get speed() {
    return Number(byId("replay-speed").value);
  }

  get pictures() {
    return this.replicas?.[Number(byId("replay-replica").value)] ?? [];
  }

  async open(file) {
    try {
      const { head, replicas } = await read(file);
      this.close();
      this.replicas = replicas;
      this.interval = head.interval_s;
      byId("replay-replica").replaceChildren(
        ...replicas.map((_, at) => make("option", { value: String(at), textContent: String(at + 1) })),
      );
      byId("replay-replica").parentElement.hidden = replicas.length < 2;
      byId("replay-at").max = String(Math.max(...replicas.map((pictures) => pictures.length)) - 1);
      byId("replay").hidden = false;
      this.tell(`Replays ${typeof head.model === "string" ? head.model.slice(0, 80) : "a simulation"}`);
      this.seek(0);
      if (this.active) this.play(); // a damaged first picture has closed it
    } catch (error) {
      this.tell(error instanceof SyntaxError || error instanceof TypeError ? "This file is damaged." : error.message);
    }
  }

  /** Show a picture, and what led to it. */
  seek(at) {
    this.at = at;
    this.passed = 0;
    this.reset();
    for (let back = Math.max(0, at - BEFORE); back <= at; back += 1) this.picture(back, back === at);
  }

  play() {
    if (this.at >= Number(byId("replay-at").max)) this.seek(0);
    let before = performance.now();
    this.passed = 0;
    this.timer = setInterval(() => {
      const now = performance.now();
      this.passed += ((now - before) / 1000) * this.speed;
      before = now;
      const steps = Math.min(Math.floor(this.passed / this.interval), Number(byId("replay-at").max) - this.at);
      if (this.passed >= this.interval) this.passed %= this.interval;
      for (let step = 1; step <= steps; step += 1) this.picture(this.at + step, step === steps);
      if (!this.active) return;
      this.at += steps;
      if (this.at >= Number(byId("replay-at").max)) this.pause();
    }, FRAME_MS);
    this.clock(this.speed);
    byId("replay-play").textContent = "Pause";
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.clock(0);
    byId("replay-play").textContent = "Play";
  }

  close() {
    if (!this.active) return;
    this.pause();
    this.replicas = null;
    byId("replay").hidden = true;
    this.tell("");
    this.reset();
    this.clock(1);
    this.left();
  }

  picture(at, last) {
    const text = this.pictures[at];
    if (text === undefined) return;
    try {
      const picture = JSON.parse(text);
      this.show(picture, last);
      if (!last) return;
      byId("replay-at").value = String(at);
      byId("replay-time").textContent = `${picture.now.toFixed(1)} s`;
    } catch {
      this.close();
      this.tell("This file is damaged.");
    }
  }

  tell(words) {
    byId("traffic-status").textContent = words;
  }
}

/** The first line of a file, and the others by replica, as text. Raises an error in words. */
async function read(file) {
  if (file.size > MAX_BYTES) throw new Error("This file is too large.");
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
  const replicas = [];
  let head = null;
  let rest = "";
  const take = (line) => {
    if (head === null) {
      head = first(line);
      return;
    }
    const number = /^\{"replica":(\d{1,4}),/.exec(line);
    if (number) (replicas[Number(number[1])] ??= []).push(line);
  };
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = lines.pop();
    lines.forEach(take);
    if (rest.length > MAX_LINE || (done && head === null)) throw new Error(NOT_ONE);
    if (done) break;
  }
  if (!replicas.length || Object.keys(replicas).length !== replicas.length) throw new Error("There is nothing to replay in this file.");
  return { head, replicas };
}

const NOT_ONE = "This is not a file of “headrace simulate --timeline”.";

function first(line) {
  let head = null;
  try {
    head = JSON.parse(line);
  } catch {
    throw new Error(NOT_ONE);
  }
  if (head?.headrace_timeline !== VERSION || !(head.interval_s > 0)) throw new Error(NOT_ONE);
  return head;
}
