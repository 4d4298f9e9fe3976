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
  const lines = text.split("\n");
  let at = 0;
  const takeWhile = (pattern) => {
    const taken = [];
    while (at < lines.length && pattern.test(lines[at])) taken.push(lines[at++]);
    return taken;
  };
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
    } else if (FENCE.test(line)) {
      const fence = FENCE.exec(line)[1];
      const code = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence); at += 1) code.push(lines[at]);
      at += 1;
      fragment.append(make("pre", { tabIndex: 0 }, make("code", { textContent: code.join("\n") })));
    } else if (HEADING.test(line)) {
      fragment.append(make("h4", {}, inline(HEADING.exec(line)[2])));
      at += 1;
    } else if (BULLET.test(line)) {
      const items = takeWhile(BULLET).map((item) => make("li", {}, inline(BULLET.exec(item)[1])));
      fragment.append(make("ul", {}, ...items));
    } else if (NUMBERED.test(line)) {
      const first = Number(NUMBERED.exec(line)[1]);
      const items = takeWhile(NUMBERED).map((item) => make("li", {}, inline(NUMBERED.exec(item)[2])));
      fragment.append(make("ol", { start: first }, ...items));
    } else if (QUOTE.test(line)) {
      const quoted = takeWhile(QUOTE).map((item) => QUOTE.exec(item)[1]);
      fragment.append(make("blockquote", {}, inline(quoted.join("\n"))));
    } else {
      const paragraph = [lines[at++]];
      while (at < lines.length && lines[at].trim() && !startsBlock(lines[at])) paragraph.push(lines[at++]);
      fragment.append(make("p", {}, inline(paragraph.join("\n"))));
    }
  }
  return fragment;
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
