// Six numbers and how they went over the last half minute.

import { byId, count, duration, make, percent, plural } from "../common/dom.js";

const KEPT = 150; // half a minute of ticks
const SVG = "http://www.w3.org/2000/svg";

/** title, and of a tick: the number, its unit, the line below, and one or two values to draw. */
const GAUGES = [
  ["Output", (tick) => [count(tick.tokens_per_s), "tok/s", `${plural(tick.output_tokens, "token")} in all${roofline(tick)}`, [tick.tokens_per_s]]],
  ["First token", (tick) => latency(tick.ttft)],
  ["Between tokens", (tick) => latency(tick.itl)],
  [
    "Batch",
    (tick) => [
      count(tick.running),
      `of ${count(tick.max_num_seqs)}`,
      `${count(tick.tokens_per_step)} of ${count(tick.max_num_batched_tokens)} tokens a step`,
      [tick.running],
    ],
  ],
  ["Queue", (tick) => [count(tick.waiting), "waiting", plural(tick.preemptions, "preemption"), [tick.waiting]]],
  [
    "KV memory",
    (tick) => [
      percent(held(tick)),
      "in use",
      tick.prefix_queries ? `${percent(tick.prefix_hits / tick.prefix_queries)} prefix hits` : "no prompt yet",
      [held(tick)],
    ],
  ],
];

/** How close steps come to the machine's limits, where `headrace calibrate` has measured those. */
function roofline(tick) {
  return typeof tick.roofline === "number" ? `, ${percent(tick.roofline)} of the roofline` : "";
}

function latency(quantiles) {
  if (quantiles.p50 === null) return ["–", "", "of the last minute", [0, 0]];
  const [number, unit] = duration(quantiles.p50).split(" ");
  return [number, `${unit} median`, `p90 ${duration(quantiles.p90)}, p99 ${duration(quantiles.p99)}`, [quantiles.p50, quantiles.p99]];
}

const held = (tick) => Math.max(0, ...tick.maps.map((map) => map.held / map.blocks));

export class Gauges {
  constructor() {
    this.gauges = GAUGES.map(([title, read]) => new Gauge(title, read));
    byId("gauges").replaceChildren(...this.gauges.map((gauge) => gauge.element));
  }

  take(tick) {
    for (const gauge of this.gauges) gauge.take(tick);
  }
}

class Gauge {
  constructor(title, read) {
    this.read = read;
    this.history = [];
    this.big = make("span", { textContent: "–" });
    this.unit = make("small");
    this.more = make("p", { class: "more", textContent: "\u00a0" });
    this.lines = ["under-line", "line", "line second"].map((name) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      return path;
    });
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 30`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(...this.lines);
    this.element = make("li", { class: "gauge" }, make("h3", { textContent: title }),
      svg, make("p", { class: "big" }, this.big, this.unit), this.more);
  }

  take(tick) {
    const [number, unit, more, values] = this.read(tick);
    this.big.textContent = number;
    this.unit.textContent = unit;
    this.more.textContent = more;
    this.more.title = more;
    this.history.push(values);
    if (this.history.length > KEPT) this.history.shift();
    this.draw(values.length);
  }

  draw(series) {
    const most = Math.max(1e-9, ...this.history.flat());
    const start = KEPT - this.history.length;
    const points = (index) =>
      this.history.map((values, at) => `${start + at},${(27 - 23 * (values[index] / most)).toFixed(1)}`).join("L");
    const [under, first, second] = this.lines;
    first.setAttribute("d", `M${points(0)}`);
    under.setAttribute("d", `M${start},30L${points(0)}L${KEPT - 1},30Z`);
    if (series > 1) second.setAttribute("d", `M${points(1)}`);
  }
}
