// What `headrace plan` says, asked for by a form. The server computes every number.

import { byId, count, duration, make } from "../common/dom.js";
import { ask, headers, sentence } from "../common/server.js";

const DEFAULT = "served";
const FIELDS = ["prompt_tokens", "output_tokens", "users", "ttft", "tpot", "requests_per_day", "price_per_hour"];
const COUNTS = [1, 2, 4, 8];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

const form = byId("question");
const said = byId("said");

function size(bytes) {
  let [value, unit] = [bytes, 0];
  while (value >= 1024 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

const money = (value) => (value === null ? "–" : value.toPrecision(3));

function say(text, bad = false) {
  said.textContent = text;
  said.toggleAttribute("data-bad", bad);
}

function key() {
  try {
    return (JSON.parse(localStorage.getItem("headrace.settings") ?? "{}").key ?? "").trim();
  } catch {
    return ""; // a browser that keeps nothing
  }
}

function table(title, heads, rows) {
  if (!rows.length) return [];
  const body = rows.map(([first, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, first), ...cells.map((cell) => make("td", {}, cell))));
  return [
    make("h2", {}, title),
    make("div", { class: "box", tabIndex: 0, role: "region", "aria-label": title },
      make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...body))),
  ];
}

const fits = (number) => (number ? count(number) : "does not fit");

function show(plan) {
  const { model, hardware, speed } = plan;
  const context = plan.load.prompt_tokens + plan.load.output_tokens;
  const parts = table(`Memory of ${model.name}, ${count(model.parameters)} parameters, on ${hardware.title}`,
    ["Format", "Bits", "Weights", "KV a token", "Needed a device", "Longest context", `Sequences of ${count(context)}`],
    plan.formats.map((row) => [row.label, row.bits.toFixed(2), size(row.weights), size(row.kv_token), size(row.needed),
      fits(row.context), fits(row.batch)]));
  if (speed) {
    parts.push(...table(`Speed in ${speed.format}`,
      ["Batch", "Prefill", "TTFT", "TPOT", "Output tok/s", "1M output", "1M input", "J a token"],
      speed.batches.map((row) => [count(row.batch), duration(row.prefill_s), duration(row.ttft_s), duration(row.tpot_s),
        count(row.output_per_s * speed.copies), money(row.cost.output), money(row.cost.input), money(row.cost.joules)])));
    const bend = speed.compute_bound_from_batch;
    parts.push(make("p", {}, bend === null ? "Decode steps are bound by memory at every batch."
      : `Weights alone make decode steps bound by compute from a batch of ${count(bend)}.`));
  }
  if (plan.settings.length) {
    parts.push(make("h2", {}, "Best settings"), make("ol", {}, ...plan.settings.map(setting)));
  }
  parts.push(...table("KV by kind of attention, 16 bits", ["Kind", "A token", "32 sequences of 8,192"],
    plan.attention.map((row) => [row.kind + (row.own ? ", this model" : ""), size(row.kv_token), size(row.kv_batch)])));
  byId("plan").replaceChildren(...parts);
  say(plan.problem ? sentence(plan.problem) : `Rates: ${hardware.source}.`, Boolean(plan.problem));
}

function setting(one) {
  const cost = one.daily_cost === null ? [] : [make("p", {}, `${money(one.daily_cost)} a day; ${count(one.tokens_per_unit)} output tokens for 1.`)];
  return make("li", {},
    make("b", {}, one.description),
    make("p", {}, `${count(one.batch)} in flight a copy, ${count(one.machines)} machine${one.machines === 1 ? "" : "s"}: TTFT ${duration(one.ttft_s)}, TPOT ${duration(one.tpot_s)}, ${count(one.output_tokens_per_s)} output tokens a second.`),
    ...cost,
    make("p", {}, one.command ? make("code", {}, one.command) : one.note));
}

function query() {
  const fields = form.elements;
  const asked = new URLSearchParams({ model: fields.model.value });
  const devices = Number(fields.devices.value);
  asked.set("hardware", devices > 1 ? `${devices}x${fields.device.value}` : fields.device.value);
  for (const name of FIELDS) if (fields[name].value !== "") asked.set(name, fields[name].value);
  if (fields.hits.value !== "") asked.set("prefix_hit", Number(fields.hits.value) / 100);
  return asked;
}

let running;

async function calculate() {
  if (!form.reportValidity()) return;
  running?.abort();
  const mine = (running = new AbortController());
  say("Calculating …");
  try {
    const answer = await ask(`plan?${query()}`, { headers: headers(key()), signal: mine.signal });
    show(await answer.json());
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("plan").replaceChildren();
    say(error.message, true);
  }
}

function offer(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value, textContent: text })));
}

/** A machine has so many of its devices. */
function offerCounts(machines) {
  const chosen = machines.find((one) => one.name === form.elements.device.value);
  offer(form.elements.devices, COUNTS.filter((number) => number <= (chosen?.most ?? 1)).map((number) => [number, number]));
}

try {
  const { served, models, hardware } = await (await ask("plan/choices", { headers: headers(key()) })).json();
  offer(form.elements.model, [[DEFAULT, `${served}, served here`], ...models.map((name) => [name, name.slice(6)])]);
  offer(form.elements.device, [["this", "This machine"], ...hardware.map((one) => [one.name, one.title])]);
  offerCounts(hardware);
  form.elements.device.addEventListener("change", () => offerCounts(hardware));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    calculate();
  });
  await calculate();
} catch (error) {
  say(`${error.message} Set the key in the settings of the chat page.`, true);
}
