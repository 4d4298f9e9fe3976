// A little Markdown, as elements. Model text never becomes markup: it enters as text nodes, and links go to the web only.

import { make } from "../common/dom.js";

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBERED = /^\s*(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^\s*>\s?(.*)$/;
const PARAGRAPH = /\S/; // whatever is not blank and of no other kind

/** The text as a fragment: paragraphs, headings, lists, quotes, fenced code, and what `inline` knows. */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  new GrowingMarkdown(fragment).grow(text);
  return fragment;
}

/** Draws a text that grows at its end into `box`, line by line. Only the line that has not ended is drawn again. */
export class GrowingMarkdown {
  constructor(box) {
    this.box = box;
    this.ended = 0; // characters of the lines that have ended
    this.block = null; // the block that their last one is in, if the next line may continue it
    this.open = []; // nodes of the line that has not ended
  }

  grow(text) {
    for (const node of this.open) node.remove();
    const lines = text.slice(this.ended).split("\n");
    const last = lines.pop();
    for (const line of lines) this.block = this.draw(line).block;
    this.ended = text.length - last.length;
    this.open = this.draw(last).nodes;
  }

  /** Appends a line: {block, nodes}, the block that the next line may continue and the nodes that this one added. */
  draw(line) {
    const { block } = this;
    if (block?.fence) {
      if (line.trim().startsWith(block.fence)) return { block: null, nodes: [] };
      return extend({ ...block, empty: false }, block.empty ? line : `\n${line}`);
    }
    const kind = KINDS.find(({ pattern }) => pattern.test(line));
    if (!kind) return { block: null, nodes: [] };
    const found = kind.pattern.exec(line);
    if (block?.kind === kind) return kind.more(block, found);
    const { element, ...begun } = kind.begin(found);
    this.box.append(element);
    return { block: kind.more || begun.fence ? { kind, element, ...begun } : null, nodes: [element] };
  }
}

function extend(block, ...nodes) {
  const added = nodes.map((node) => (typeof node === "string" ? document.createTextNode(node) : node));
  (block.inner ?? block.element).append(...added);
  return { block, nodes: added };
}

const item = (text) => make("li", {}, inline(text));
const nextItem = (block, found) => extend(block, item(found.at(-1)));
const nextLine = (block, found) => extend(block, make("br"), ...inline(found[1] ?? found.input).childNodes);

/** How a line of each kind begins a block, and how the next continues it. The first pattern that fits counts. */
const KINDS = [
  {
    pattern: FENCE,
    begin: ([, fence]) => {
      const inner = make("code");
      return { element: make("pre", { tabIndex: 0 }, inner), inner, fence, empty: true };
    },
  },
  { pattern: HEADING, begin: (found) => ({ element: make("h4", {}, inline(found[2])) }) },
  { pattern: BULLET, begin: (found) => ({ element: make("ul", {}, item(found[1])) }), more: nextItem },
  {
    pattern: NUMBERED,
    begin: (found) => ({ element: make("ol", { start: Number(found[1]) }, item(found[2])) }),
    more: nextItem,
  },
  { pattern: QUOTE, begin: (found) => ({ element: make("blockquote", {}, inline(found[1])) }), more: nextLine },
  { pattern: PARAGRAPH, begin: (found) => ({ element: make("p", {}, inline(found.input)) }), more: nextLine },
];

// Each alternative is linear: nothing that repeats holds anything that repeats.
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]{1,300})\]\((https?:\/\/[^\s)]{1,2000})\)/;

function inline(text) {
  const fragment = document.createDocumentFragment();
  let rest = text;
  for (let found = INLINE.exec(rest); found !== null; found = INLINE.exec(rest)) {
    plain(fragment, rest.slice(0, found.index));
    const [whole, code, bold, italic, words, address] = found;
    if (code !== undefined) fragment.append(make("code", { textContent: code }));
    else if (bold !== undefined) fragment.append(make("strong", { textContent: bold }));
    else if (italic !== undefined) fragment.append(make("em", { textContent: italic }));
    else fragment.append(link(words, address));
    rest = rest.slice(found.index + whole.length);
  }
  plain(fragment, rest);
  return fragment;
}

function link(words, address) {
  const goal = URL.canParse(address) ? new URL(address) : null;
  if (goal === null || !["http:", "https:"].includes(goal.protocol)) return document.createTextNode(words);
  return make("a", { href: goal.href, target: "_blank", rel: "noopener noreferrer nofollow", textContent: words });
}

function plain(fragment, text) {
  if (text) fragment.append(text);
}
