// Requests as the page remembers them: each tick of the feed, put together to a history.

const GAP_S = 0.15;
const GLIMPSE_S = 0.12;
const MAX_KEPT = 400;

/**
 * One lane: when it was queued, computed its prompt, decoded, and was preempted. Times are the engine's.
 * `interruptions` are [phase, from, to] that lie over the rest; `to` is null while they last.
 */
class Lane {
  constructor(record, now) {
    this.name = record.name;
    this.arrival = record.arrival;
    this.shownFrom = record.arrival;
    this.row = null;
    this.finished = null;
    this.reason = null;
    this.interruptions = [];
    this.drafts = []; // [time, output so far, drafted, accepted], where anything was drafted
    this.update(record, record.arrival, now);
  }

  update(record, since, now) {
    const { scheduled = null, first = null, phase = null } = record;
    if (record.preemptions > (this.preemptions ?? record.preemptions) && phase !== "preempted") {
      // It was over before anybody looked: about here.
      this.interruptions.push(["preempted", since - GLIMPSE_S / 2, since + GLIMPSE_S / 2]);
    }
    Object.assign(this, { scheduled, first, prompt: record.prompt, cached: record.cached, output: record.output });
    this.preemptions = record.preemptions;
    const { drafted = 0, accepted = 0 } = record;
    if (drafted > (this.drafts.at(-1)?.[2] ?? 0)) this.drafts.push([now, record.output, drafted, accepted]);
    this.computed = record.computed ?? record.prompt + record.output;
    if (phase === null) return;
    this.phase = phase;
    const open = this.interruptions.at(-1);
    const isOpen = open !== undefined && open[2] === null;
    // Behind the first token, a prefill is what a preemption has cost.
    const over = phase === "preempted" || (phase === "prefill" && first !== null) ? phase : null;
    if (isOpen && open[0] !== over) open[2] = since;
    if (over !== null && (!isOpen || open[0] !== over)) this.interruptions.push([over, since, null]);
  }

  end(record, at) {
    this.finished = record.finished ?? at;
    this.reason = record.reason ?? null;
    for (const interruption of this.interruptions) interruption[2] ??= this.finished;
  }

  /** The tokens that were drafted, and how many of them were right. */
  get drafted() {
    const [, , drafted = 0, accepted = 0] = this.drafts.at(-1) ?? [];
    return { drafted, accepted };
  }

  /** [from, to, right, wrong]: shares of what was verified between two ticks, of drafted tokens that were right and wrong. */
  shares() {
    let [time, output, drafted, accepted] = [this.first ?? this.arrival, 0, 0, 0];
    return this.drafts.map((next) => {
      const right = next[3] - accepted;
      const wrong = next[2] - drafted - right;
      const all = Math.max(1, next[1] - output + wrong);
      const found = [time, next[0], right / all, wrong / all];
      [time, output, drafted, accepted] = next;
      return found;
    });
  }

  /** [phase, from, to] up to `now`, in the order of drawing. */
  segments(now) {
    const end = this.finished ?? now;
    const scheduled = this.scheduled ?? end;
    const first = this.first ?? end;
    const parts = [["queued", this.arrival, scheduled]];
    if (this.scheduled !== null) parts.push(["prefill", scheduled, first]);
    if (this.first !== null) parts.push(["decode", first, end]);
    for (const [phase, from, to] of this.interruptions) parts.push([phase, from, to ?? end]);
    return parts;
  }
}

export class Lanes {
  constructor() {
    this.lanes = new Map();
    this.before = 0;
    this.now = 0;
  }

  clear() {
    this.lanes.clear();
  }

  /** The engine is gone. */
  endAll() {
    for (const lane of this.lanes.values()) if (lane.finished === null) lane.end({}, this.now);
  }

  /** Takes in a tick of the feed. */
  take(tick) {
    const start = this.before || tick.now;
    this.before = this.now = tick.now;
    const alive = new Set();
    for (const record of tick.lanes) {
      alive.add(record.name);
      const known = this.lanes.get(record.name);
      if (known) known.update(record, (start + tick.now) / 2, tick.now);
      else this.lanes.set(record.name, new Lane(record, tick.now));
    }
    for (const record of tick.ended) {
      let lane = this.lanes.get(record.name);
      if (!lane) {
        lane = new Lane(record, tick.now); // it began and ended between two ticks
        this.lanes.set(record.name, lane);
      }
      if (lane.finished === null) {
        lane.update(record, (start + record.finished) / 2, record.finished);
        lane.end(record, tick.now);
      }
    }
    for (const lane of this.lanes.values()) {
      if (lane.finished === null && !alive.has(lane.name)) lane.end({}, tick.now);
    }
    this.forget();
  }

  forget() {
    const surplus = this.lanes.size - MAX_KEPT;
    if (surplus <= 0) return;
    const over = [...this.lanes.values()].filter((lane) => lane.finished !== null).slice(0, surplus);
    for (const lane of over) this.lanes.delete(lane.name);
  }

  /**
   * Gives lanes a row of their own while they are in sight: the lowest that is free. A lane that has to wait for a row
   * is shown from then on. The first row is for lanes that are `mine`, once there are any. Returns the lanes in rows, and
   * how many that have not ended found none.
   */
  layout(rows, from, mine) {
    const last = new Array(rows).fill(null);
    const shown = [];
    let left = 0;
    for (const [name, lane] of this.lanes) {
      if (lane.finished !== null && lane.finished < from) {
        this.lanes.delete(name);
        continue;
      }
      if (lane.row !== null && lane.row >= rows) lane.row = null;
      if (lane.row !== null) {
        shown.push(lane);
        if (!last[lane.row] || last[lane.row].arrival < lane.arrival) last[lane.row] = lane;
      }
    }
    for (const lane of this.lanes.values()) {
      if (lane.row !== null) continue;
      const isFree = (other) =>
        !other || (other.finished !== null && (lane.finished === null || other.finished + GAP_S < lane.arrival));
      const row = last.findIndex((other, at) => (at > 0 || !mine.size || mine.has(lane.name)) && isFree(other));
      if (row < 0) {
        left += lane.finished === null;
        continue;
      }
      lane.row = row;
      if (last[row]) lane.shownFrom = Math.max(lane.shownFrom, last[row].finished + GAP_S);
      last[row] = lane;
      shown.push(lane);
    }
    return { shown, left };
  }

  get drafting() {
    for (const lane of this.lanes.values()) if (lane.drafts.length) return true;
    return false;
  }

  get busy() {
    for (const lane of this.lanes.values()) if (lane.finished === null) return true;
    return false;
  }
}
