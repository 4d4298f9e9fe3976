// The lanes in words, for those who cannot see them or want to read them.

import { byId, count, duration, make } from "../common/dom.js";

const EVERY_MS = 1000;

export class LanesTable {
  constructor() {
    this.body = byId("lanes-table");
    this.details = this.body.closest("details");
    this.shown = 0;
  }

  take(tick) {
    const now = performance.now();
    if (!this.details.open || now - this.shown < EVERY_MS) return;
    this.shown = now;
    const rows = tick.lanes.map((lane) => {
      const numbers = [count(lane.prompt), count(lane.cached), count(lane.output), lane.drafted ? `${count(lane.accepted)} of ${count(lane.drafted)}` : "–", count(lane.preemptions), duration(tick.now - lane.arrival)];
      return make("tr", {}, make("th", { scope: "row", textContent: lane.name }), make("td", { textContent: lane.phase }),
        ...numbers.map((number) => make("td", { class: "number", textContent: number })));
    });
    if (!rows.length) rows.push(make("tr", {}, make("td", { colSpan: 8, textContent: "No request is at the engine now." })));
    this.body.replaceChildren(...rows);
  }
}
