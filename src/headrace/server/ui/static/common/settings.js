// What the visitor chose, kept in this browser.

import { byId, make } from "./dom.js";

const STORED = "headrace.settings";
// Until something else is chosen: small models wander at the API's own temperature of 1.
const AT_FIRST = { temperature: 0.7 };
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const TEXTS = ["model", "system", "key"];

/** Reads and writes the settings dialog; `changed` is called after every change. */
export class Settings {
  constructor(changed) {
    this.changed = changed;
    this.dialog = byId("settings");
    this.form = byId("settings-form");
    this.values = read();
    this.show();
    this.form.addEventListener("input", () => this.take());
    byId("open-settings").addEventListener("click", () => this.open());
    byId("reset-settings").addEventListener("click", () => {
      this.values = { ...AT_FIRST };
      this.show();
      this.store();
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
  }

  open(field) {
    this.dialog.showModal();
    if (field) this.form.elements[field].focus();
  }

  get key() {
    return (this.values.key ?? "").trim();
  }

  /** The fields of a chat request that were chosen. */
  get request() {
    const chosen = { model: this.values.model || undefined };
    for (const name of NUMBERS) if (this.values[name] !== undefined) chosen[name] = this.values[name];
    return chosen;
  }

  get system() {
    return (this.values.system ?? "").trim();
  }

  /** The names that the server answers to. */
  offer(names) {
    const select = byId("set-model");
    select.replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
    if (names.includes(this.values.model)) select.value = this.values.model;
    else delete this.values.model;
  }

  show() {
    for (const name of [...NUMBERS, ...TEXTS]) this.form.elements[name].value = this.values[name] ?? "";
  }

  take() {
    const fields = this.form.elements;
    for (const name of TEXTS) this.values[name] = fields[name].value;
    for (const name of NUMBERS) {
      const field = fields[name];
      const usable = field.value !== "" && field.validity.valid;
      this.values[name] = usable ? Number(field.value) : undefined;
    }
    this.store();
  }

  store() {
    try {
      localStorage.setItem(STORED, JSON.stringify(this.values));
    } catch {
      // a browser that keeps nothing: the settings hold until the page is left
    }
    this.changed();
  }
}

function read() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORED) ?? "null") ?? AT_FIRST;
    const values = {};
    for (const name of NUMBERS) if (Number.isFinite(stored[name])) values[name] = stored[name];
    for (const name of TEXTS) if (typeof stored[name] === "string") values[name] = stored[name];
    return values;
  } catch {
    return { ...AT_FIRST };
  }
}
