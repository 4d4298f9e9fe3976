// The KV blocks of each pool as a grid: free, free but still findable, held, shared. Each tells its story.

import { BLOCKS, colours, fillBlock, onColours } from "../common/colours.js";
import { byId, count, make, onceAFrame, percent, plural, surface } from "../common/dom.js";

const NUMBERS_A_RUN = 5; // first cell, cells, users, lane, place
const GAP = 1;

/** All pools of the engine, one grid each. */
export class BlockMaps {
  constructor() {
    this.box = byId("maps");
    this.grids = [];
    legend();
  }

  take(tick) {
    if (this.grids.length !== tick.maps.length) {
      this.grids = tick.maps.map(() => new Grid());
      this.box.replaceChildren(...this.grids.map((grid) => grid.element));
    }
    tick.maps.forEach((map, index) => this.grids[index].take(map, tick.lanes, tick.maps.length > 1));
  }
}

class Grid {
  constructor() {
    this.caption = make("p", { class: "map-caption" });
    this.canvas = make("canvas", { tabIndex: 0, role: "img" });
    this.element = make("div", { class: "map" }, this.caption, this.canvas);
    this.map = null;
    this.cells = [];
    this.lanes = [];
    this.marked = null; // the cell that is pointed at
    this.draw = onceAFrame(() => this.paint());
    onColours(this.draw);
    new ResizeObserver(this.draw).observe(this.element);
    this.canvas.addEventListener("pointermove", (event) => this.mark(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => this.mark(null));
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    this.canvas.addEventListener("focus", () => this.mark(this.marked ?? 0));
    this.canvas.addEventListener("blur", () => this.mark(null));
  }

  take(map, lanes, isOneOfSeveral) {
    const same = this.map !== null && this.map.runs.join() === map.runs.join() && lanes.length === this.lanes.length;
    this.map = map;
    this.lanes = lanes;
    if (same) {
      if (this.marked !== null) this.tell();
      return;
    }
    this.size = Math.ceil(map.blocks / map.per_cell);
    this.cells = new Array(this.size).fill(null);
    let shared = 0;
    for (let at = 0; at < map.runs.length; at += NUMBERS_A_RUN) {
      const [first, cells, users, lane, place] = map.runs.slice(at, at + NUMBERS_A_RUN);
      if (users > 1) shared += cells;
      for (let cell = first; cell < Math.min(first + cells, this.size); cell += 1) {
        this.cells[cell] = { users, lane, place: place < 0 ? null : place + cell - first };
      }
    }
    const free = map.blocks - map.held - map.findable;
    const parts = [
      [percent(map.held / map.blocks), "in use"],
      [count(map.held), "held"],
      [count(shared), "shared"],
      [count(map.findable), "findable"],
      [count(free), "free"],
    ];
    this.caption.replaceChildren(
      ...(isOneOfSeveral ? [make("span", { textContent: `Group ${map.name}:` })] : []),
      ...parts.map(([number, word]) => make("span", {}, make("b", { textContent: number }), ` ${word}`)),
      make("span", { textContent: `of ${plural(map.blocks, "block")}, ${plural(map.block_size, "token")} each` }),
    );
    this.canvas.setAttribute(
      "aria-label",
      `KV blocks${isOneOfSeveral ? ` of group ${map.name}` : ""}: ${map.held} held, ${shared} of them shared, ` +
        `${map.findable} free and still findable, ${free} free. Arrow keys go from block to block.`,
    );
    this.draw();
    if (this.marked !== null) this.tell();
  }

  /** Cells as large as the room allows: at most 16 pixels, at least 5. */
  measure() {
    const width = this.element.clientWidth;
    const height = Math.max(110, Math.min(230, window.innerHeight * 0.24));
    let pitch = 17;
    while (pitch > 6 && Math.ceil(this.size / Math.floor(width / pitch)) * pitch > height) pitch -= 0.5;
    this.pitch = pitch;
    this.columns = Math.max(1, Math.floor(width / pitch));
    return Math.ceil(this.size / this.columns) * pitch;
  }

  paint() {
    if (this.map === null || !this.element.clientWidth) return;
    const height = this.measure();
    this.canvas.style.height = `${height}px`;
    const area = surface(this.canvas, height);
    if (area === null) return;
    const { context } = area;
    const box = this.pitch - GAP;
    const chosen = this.marked === null ? null : this.cells[this.marked];
    const lane = chosen && chosen.users > 0 ? chosen.lane : null;
    for (let cell = 0; cell < this.size; cell += 1) {
      const what = this.cells[cell];
      const [x, y] = [(cell % this.columns) * this.pitch, Math.floor(cell / this.columns) * this.pitch];
      context.globalAlpha = lane === null || (what && what.lane === lane) ? 1 : 0.35;
      fillBlock(context, kind(what), x, y, box, tint(this.lanes[what?.lane]), what?.users);
      if (cell === this.marked) {
        context.globalAlpha = 1;
        context.strokeStyle = colours().ink;
        context.lineWidth = 2;
        context.strokeRect(x, y, box, box);
      }
    }
    context.globalAlpha = 1;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.pitch);
    const cell = Math.floor((event.clientY - box.top) / this.pitch) * this.columns + column;
    return column < this.columns && cell >= 0 && cell < this.size ? cell : null;
  }

  mark(cell) {
    if (cell === this.marked) return;
    this.marked = cell;
    this.draw();
    if (cell !== null && this.map !== null) this.tell();
  }

  step(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    const goals = { Home: 0, End: this.size - 1 };
    const goal = event.key in goals ? goals[event.key] : (this.marked ?? 0) + (moves[event.key] ?? NaN);
    if (Number.isNaN(goal)) return;
    event.preventDefault();
    this.mark(Math.max(0, Math.min(this.size - 1, goal)));
  }

  /** The marked block's story, in a sentence. */
  tell() {
    const { blocks, per_cell: perCell, block_size: size } = this.map;
    const first = this.marked * perCell;
    const last = Math.min(first + perCell, blocks) - 1;
    const name = perCell === 1 ? `Block ${first}` : `Blocks ${first} to ${last}`;
    const story = byId("story");
    const text = tale(this.cells[this.marked], this.lanes, size, perCell > 1);
    if (story.dataset.shown === name + text) return; // screen readers hear news only
    story.dataset.shown = name + text;
    story.replaceChildren(make("b", { textContent: name }), text);
  }
}

/** Distinguishes blocks of two requests side by side; it stays with a request as others come and go. */
function tint(lane) {
  if (lane === undefined) return 0;
  let sum = 0;
  for (const char of lane.name) sum += char.charCodeAt(0);
  return sum % 2;
}

function kind(what) {
  if (what === null) return "free";
  if (what.users === 0) return "cached";
  return what.users > 1 ? "shared" : "held";
}

function tale(what, lanes, size, isSeveral) {
  const most = isSeveral ? " at most" : "";
  if (what === null) return " is free; nothing in it can be found again.".replace("is", isSeveral ? "are" : "is");
  if (what.users === 0) return ": free, but still findable. A prompt that begins the same way takes it back without computing it.";
  const owner = lanes[what.lane]?.name;
  const by = owner ? ` of ${owner}` : "";
  const where = what.place === null ? "" : `, tokens ${what.place * size} to ${(what.place + 1) * size - 1}${by}`;
  if (what.users === 1) return `: held by one request${where}.`;
  return `: shared${most} by ${what.users} requests${where} and of others that begin the same way. It was computed once.`;
}

function legend() {
  const samples = Object.entries(BLOCKS).map(([name, word]) => [name, make("canvas", { "aria-hidden": "true" }), word]);
  byId("map-legend").replaceChildren(...samples.map(([, canvas, word]) => make("li", {}, canvas, word)));
  const draw = () => {
    for (const [name, canvas] of samples) {
      const area = surface(canvas);
      if (area) fillBlock(area.context, name, 2, 0, area.height, 0, 4);
    }
  };
  onColours(draw);
  new ResizeObserver(draw).observe(byId("map-legend"));
}
