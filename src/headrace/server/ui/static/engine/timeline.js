// Lanes on a time line that moves to the left, the present at the right edge.

import { colours, DRAFTS, fillDraft, fillPhase, onColours, PHASES } from "../common/colours.js";
import { byId, calm, make, surface } from "../common/dom.js";

const SPAN_S = 10;
const NARROW_SPAN_S = 6;
const DELAY_S = 0.3; // what is drawn has arrived already, unless a tick is late
const MIN_ROW = 18;
const MAX_ROW = 26;
const ROWS_WANTED = 22;
const AXIS = 22;
const MIN_FRAME_MS = 30;
const BAND = 0.42; // of a bar's height, for drafted tokens that were right, and again for wrong ones

export class Timeline {
  constructor(lanes) {
    this.lanes = lanes;
    this.canvas = byId("lanes");
    this.offset = null; // engine's clock minus ours, in seconds
    this.speed = 1; // of the engine's clock, by ours; 0 where a replay rests
    this.mine = new Set();
    this.moving = false;
    this.drafting = false; // whether tokens were drafted since the page was opened
    this.drawn = 0;
    onColours(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** A tick has come: align the clocks, and move on. */
  tick(now) {
    const offset = now - (performance.now() / 1000) * this.speed;
    // Ticks come late, never early: trust the earliest, and forget slowly.
    this.offset = this.offset === null || Math.abs(offset - this.offset) > 2 ? offset : Math.max(offset, this.offset - 0.004);
    if (!this.drafting && this.lanes.drafting) {
      this.drafting = true;
      draftLegend();
    }
    byId("lanes-empty").hidden = this.lanes.lanes.size > 0;
    if (calm.matches) this.draw();
    else this.run();
  }

  /** The engine's clock runs so many times as fast as ours from now on. */
  setSpeed(speed) {
    if (this.offset !== null) this.offset += (performance.now() / 1000) * (this.speed - speed);
    this.speed = speed;
    this.draw();
  }

  run() {
    if (this.moving) return;
    this.moving = true;
    const frame = (time) => {
      if (!this.lanes.lanes.size || calm.matches || document.hidden) {
        this.moving = false;
        this.draw();
        return;
      }
      if (time - this.drawn >= MIN_FRAME_MS) {
        this.drawn = time;
        this.draw();
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  draw() {
    const area = surface(this.canvas);
    if (area === null || this.offset === null) return;
    const { context, width, height } = area;
    const c = colours();
    const narrow = width < 560;
    const labels = narrow ? 74 : 104;
    const span = narrow ? NARROW_SPAN_S : SPAN_S;
    const now = Math.min((performance.now() / 1000) * this.speed + this.offset - (this.speed ? DELAY_S : 0), this.lanes.now + 1);
    const x = (time) => labels + ((time - now + span) / span) * (width - labels - 6);
    this.row = Math.max(MIN_ROW, Math.min(MAX_ROW, Math.floor((height - AXIS) / ROWS_WANTED)));
    const rows = Math.max(1, Math.floor((height - AXIS) / this.row));
    const { shown, left } = this.lanes.layout(rows, now - span, this.mine);
    this.axis(context, c, x, now, span, width, height, labels);
    context.save();
    context.beginPath();
    context.rect(labels, 0, width - labels, height);
    context.clip();
    for (const lane of shown) this.bar(context, c, lane, x, now, labels);
    context.restore();
    this.labels(context, c, shown, labels, narrow);
    if (left) {
      context.fillStyle = c.quiet;
      context.textAlign = "left";
      context.fillText(`+ ${left} more`, 0, height - 6);
    }
  }

  axis(context, c, x, now, span, width, height, labels) {
    const bottom = height - AXIS;
    context.font = "11px " + getComputedStyle(document.body).fontFamily;
    context.textBaseline = "alphabetic";
    context.lineWidth = 1;
    for (let ago = 0; ago < span; ago += 1) {
      // Lines stand on whole seconds of the engine's clock and move with it.
      const time = Math.floor(now) - ago;
      const at = Math.round(x(time)) + 0.5;
      if (at <= labels) break;
      context.strokeStyle = c.line;
      context.globalAlpha = 0.7;
      context.beginPath();
      context.moveTo(at, 0);
      context.lineTo(at, bottom);
      context.stroke();
      context.globalAlpha = 1;
    }
    context.fillStyle = c.quiet;
    for (let ago = 0; ago < span - 0.5; ago += 2) {
      const text = ago ? `${ago} s ago` : "now";
      context.textAlign = ago ? "center" : "right";
      context.fillText(text, x(now - ago), height - 6);
    }
  }

  bar(context, c, lane, x, now, labels) {
    const thick = Math.round(this.row * 0.72);
    const y = lane.row * this.row + (this.row - thick) / 2;
    let decode = null;
    for (const [phase, from, to] of lane.segments(now)) {
      const start = Math.max(labels - 4, x(Math.max(from, lane.shownFrom)));
      const end = Math.min(x(now), x(to));
      if (end - start < 0.4) continue;
      context.fillStyle = c.surface; // patterns are half transparent: nothing may shine through
      context.fillRect(start, y, end - start, thick);
      fillPhase(context, phase, start, y, Math.max(1.5, end - start - 0.6), thick);
      if (phase === "decode") decode = [start, end];
    }
    if (decode === null) return;
    const [start, end] = decode;
    for (const [from, to, right, wrong] of lane.shares()) {
      const left = Math.max(start, x(from));
      const width = Math.min(end, x(to)) - left;
      fillDraft(context, "right", left, y + thick * (1 - BAND * right), width, thick * BAND * right);
      fillDraft(context, "wrong", left, y, width, thick * BAND * wrong);
    }
    const text = lane.finished === null ? `${lane.output}` : `${lane.output} tokens`;
    context.textAlign = "left";
    if (context.measureText(text).width + 12 > end - start || lane.interruptions.length) return;
    if (lane.drafts.length) { // not on the bands
      context.fillStyle = c.decode;
      context.fillRect(start + 3, y, context.measureText(text).width + 6, thick);
    }
    context.fillStyle = c["on-bar"];
    context.fillText(text, start + 6, y + thick / 2 + 4);
  }

  labels(context, c, shown, labels, narrow) {
    const newest = new Map();
    for (const lane of shown) {
      if (!newest.has(lane.row) || newest.get(lane.row).arrival < lane.arrival) newest.set(lane.row, lane);
    }
    context.textAlign = "left";
    for (const lane of newest.values()) {
      const y = (lane.row + 0.5) * this.row + 4;
      const mine = this.mine.has(lane.name);
      context.fillStyle = lane.finished === null || mine ? c.ink : c.quiet;
      const name = mine ? "your chat" : narrow ? lane.name.replace(/^\w+ /, "") : lane.name;
      context.fillText(name, 0, y, labels - 10);
    }
  }
}

/** The legend: a small box of each colour and pattern, and its word. */
export function phaseLegend() {
  const samples = Object.entries(PHASES).map(([phase, look]) => [phase, make("canvas", { "aria-hidden": "true" }), look.word]);
  byId("lanes-legend").replaceChildren(...samples.map(([, canvas, word]) => make("li", {}, canvas, word)));
  const draw = () => {
    for (const [phase, canvas] of samples) {
      const area = surface(canvas);
      if (area) fillPhase(area.context, phase, 0, 0, area.width, area.height);
    }
  };
  onColours(draw);
  new ResizeObserver(draw).observe(byId("lanes-legend"));
}

/** The same for drafted tokens, once there are some. */
function draftLegend() {
  for (const [kind, word] of Object.entries(DRAFTS)) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    byId("lanes-legend").append(make("li", {}, canvas, word));
    const draw = () => {
      const area = surface(canvas);
      if (!area) return;
      fillPhase(area.context, "decode", 0, 0, area.width, area.height);
      const band = area.height * BAND;
      fillDraft(area.context, kind, 0, kind === "right" ? area.height - band : 0, area.width, band);
    };
    onColours(draw);
    new ResizeObserver(draw).observe(canvas);
  }
}
