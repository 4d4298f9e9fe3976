// The palette as canvases need it, and the pattern that tells each state apart without its colour.

const NAMES = ["surface", "raised", "ink", "quiet", "line", "edge", "accent", "queued", "prefill", "decode", "decode-2",
  "preempted", "shared", "cached", "on-bar"];

let palette = null;
const listeners = new Set();

export function colours() {
  if (palette === null) {
    const style = getComputedStyle(document.documentElement);
    palette = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return palette;
}

/** `listener` is called when the theme has changed. */
export const onColours = (listener) => listeners.add(listener);

export function coloursChanged() {
  palette = null;
  for (const listener of listeners) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", coloursChanged);

/** What a state looks like: its name in the palette, its pattern, and the word for it. */
export const PHASES = {
  queued: { colour: "queued", pattern: "dots", word: "queued" },
  prefill: { colour: "prefill", pattern: "hatch", word: "prefill" },
  decode: { colour: "decode", pattern: "solid", word: "decode" },
  preempted: { colour: "preempted", pattern: "bars", word: "preempted" },
};

/** Fills a box with a phase's colour and pattern. */
export function fillPhase(context, phase, x, y, width, height, radius = 3) {
  if (width <= 0) return;
  const look = PHASES[phase] ?? PHASES.queued;
  const colour = colours()[look.colour];
  context.save();
  context.beginPath();
  context.roundRect(x, y, width, height, Math.min(radius, width / 2));
  context.clip();
  context.fillStyle = colour;
  context.globalAlpha = look.pattern === "solid" ? 1 : 0.3;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
  context.strokeStyle = colour;
  PATTERNS[look.pattern](context, x, y, width, height);
  context.restore();
}

/** What drafted tokens look like on a bar. */
export const DRAFTS = { right: "drafted, right", wrong: "drafted, wrong" };

/** The band of drafted tokens on a bar that decodes: right ones below, wrong ones above, both set off from it. */
export function fillDraft(context, kind, x, y, width, height) {
  if (width <= 0 || height <= 0) return;
  const c = colours();
  context.fillStyle = c.surface;
  context.fillRect(x, y, width, height);
  if (kind === "right") {
    context.fillStyle = c.shared;
    context.fillRect(x, y + 1, width, height - 1);
    return;
  }
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = c.preempted;
  PATTERNS.hatch(context, x, y, width, height);
  context.restore();
}

const PATTERNS = {
  solid() {},
  dots(context, x, y, width, height) {
    for (let at = x - (x % 6); at < x + width; at += 6) {
      context.fillRect(at, y + height / 2 - 1, 2.4, 2.4);
    }
  },
  hatch(context, x, y, width, height) {
    context.lineWidth = 2.2;
    context.beginPath();
    for (let at = x - (x % 6) - height; at < x + width; at += 6) {
      context.moveTo(at, y + height);
      context.lineTo(at + height, y);
    }
    context.stroke();
  },
  bars(context, x, y, width, height) {
    context.lineWidth = 2;
    context.beginPath();
    for (let at = x - (x % 5); at < x + width; at += 5) {
      context.moveTo(at + 1, y);
      context.lineTo(at + 1, y + height);
    }
    context.stroke();
    context.lineWidth = 3;
    context.strokeRect(x, y, width, height);
  },
};

/** What a block looks like, in the order of the legend. */
export const BLOCKS = {
  free: "free",
  cached: "free, still findable",
  held: "held by one request",
  shared: "shared",
};

/** `tint` tells neighbours of different requests apart; `users` how many share a block. */
export function fillBlock(context, kind, x, y, size, tint = 0, users = 2) {
  const c = colours();
  const radius = size > 7 ? 2 : size > 4 ? 1 : 0;
  const box = (inset) => {
    context.beginPath();
    context.roundRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset, radius);
  };
  if (kind === "free") {
    context.fillStyle = c.raised;
    box(0);
    context.fill();
    return;
  }
  if (kind === "cached") {
    context.fillStyle = c.raised;
    box(0);
    context.fill();
    context.globalAlpha *= 0.25;
    context.fillStyle = c.cached;
    context.fill();
    context.globalAlpha *= 4;
    context.strokeStyle = c.cached;
    context.lineWidth = Math.max(1, size / 11);
    context.beginPath();
    context.moveTo(x + 1, y + size - 1);
    context.lineTo(x + size - 1, y + 1);
    context.stroke();
    return;
  }
  context.fillStyle = kind === "shared" ? c.shared : tint ? c["decode-2"] : c.decode;
  box(0);
  context.fill();
  if (kind === "shared") {
    // The more share it, the larger the ring's eye.
    context.fillStyle = c["on-bar"];
    context.beginPath();
    context.arc(x + size / 2, y + size / 2, size * Math.min(0.34, 0.13 + users * 0.025), 0, 7);
    context.fill();
  }
}
