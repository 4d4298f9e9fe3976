// A little Markdown, as elements. Model text never becomes markup: it enters as text nodes, and links go to the web only.

import { make } from "./dom.js";

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBERED = /^\s*(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^\s*>\s?(.*)$/;

/** The text as a fragment: paragraphs, headings, lists, quotes, fenced code, and what `inline` knows. */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...[...blocks(text.split("\n"))].map(({ element }) => element));
  return fragment;
}

/** Draws a text that grows at its end into `box`. Blocks that more text cannot change are drawn once. */
export class GrowingMarkdown {
  constructor(box) {
    this.box = box;
    this.final = 0; // characters whose blocks stay
    this.open = []; // elements of the blocks after them
  }

  grow(text) {
    for (const element of this.open) element.remove();
    const lines = text.slice(this.final).split("\n");
    const whole = lines.length - 1; // the last line may still become part of another block
    const found = [...blocks(lines)];
    const last = found.findLastIndex(({ line }) => line < whole); // of those that begin in a line that has ended
    const kept = Math.max(0, last);
    const end = kept ? found[kept].line : 0;
    for (let line = 0; line < end; line += 1) this.final += lines[line].length + 1;
    this.open = found.slice(kept).map(({ element }) => element);
    this.box.append(...found.map(({ element }) => element));
  }
}

/** The blocks of these lines as {element, line}: the line is the one that the block begins in. */
function* blocks(lines) {
  let at = 0;
  const takeWhile = (pattern) => {
    const taken = [];
    while (at < lines.length && pattern.test(lines[at])) taken.push(lines[at++]);
    return taken;
  };
  while (at < lines.length) {
    const line = at;
    const first = lines[at];
    if (!first.trim()) {
      at += 1;
    } else if (FENCE.test(first)) {
      const fence = FENCE.exec(first)[1];
      const code = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence); at += 1) code.push(lines[at]);
      at += 1;
      yield { line, element: make("pre", { tabIndex: 0 }, make("code", { textContent: code.join("\n") })) };
    } else if (HEADING.test(first)) {
      at += 1;
      yield { line, element: make("h4", {}, inline(HEADING.exec(first)[2])) };
    } else if (BULLET.test(first)) {
      const items = takeWhile(BULLET).map((item) => make("li", {}, inline(BULLET.exec(item)[1])));
      yield { line, element: make("ul", {}, ...items) };
    } else if (NUMBERED.test(first)) {
      const start = Number(NUMBERED.exec(first)[1]);
      const items = takeWhile(NUMBERED).map((item) => make("li", {}, inline(NUMBERED.exec(item)[2])));
      yield { line, element: make("ol", { start }, ...items) };
    } else if (QUOTE.test(first)) {
      const quoted = takeWhile(QUOTE).map((item) => QUOTE.exec(item)[1]);
      yield { line, element: make("blockquote", {}, inline(quoted.join("\n"))) };
    } else {
      const paragraph = [lines[at++]];
      while (at < lines.length && lines[at].trim() && !startsBlock(lines[at])) paragraph.push(lines[at++]);
      yield { line, element: make("p", {}, inline(paragraph.join("\n"))) };
    }
  }
}

const startsBlock = (line) => [FENCE, HEADING, BULLET, NUMBERED, QUOTE].some((pattern) => pattern.test(line));

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
  text.split("\n").forEach((line, index) => {
    if (index) fragment.append(make("br"));
    if (line) fragment.append(line);
  });
}
