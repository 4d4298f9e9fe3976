// /openapi.json as a page.
import { make } from "../common/dom.js";

const SIGNS = {
  minimum: "≥", exclusiveMinimum: ">", maximum: "≤", exclusiveMaximum: "<", minLength: "characters ≥",
  maxLength: "characters ≤", minItems: "entries ≥", maxItems: "entries ≤", maxProperties: "entries ≤",
};

const code = (text) => make("code", {}, text);
const between = (parts, word) => parts.flatMap((part, at) => (at ? [word, ...part] : part));
const fold = (id, head, ...body) => make("details", { id }, make("summary", {}, ...head), ...body);

const table = (rows) =>
  make("table", {}, ...rows.map(([head, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, ...head), ...cells.map((cell) => make("td", {}, ...cell)))));

/** A schema in a few words. */
function kind(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return [make("a", { href: `#${name}` }, name)];
  }
  if (schema.anyOf) return between(schema.anyOf.map(kind), " or ");
  const values = schema.enum ?? ("const" in schema ? [schema.const] : null);
  if (values) return between(values.map((value) => [code(JSON.stringify(value))]), " | ");
  const bounds = Object.keys(SIGNS).filter((name) => name in schema).map((name) => `${SIGNS[name]} ${schema[name]}`);
  const end = bounds.length ? [` (${bounds.join(", ")})`] : [];
  if (schema.items) return ["list of ", ...kind(schema.items), ...end];
  if (schema.additionalProperties?.constructor === Object) return ["object of ", ...kind(schema.additionalProperties), ...end];
  return [schema.type ?? "anything", ...end];
}

function fields(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) =>
    [[code(name), schema.required?.includes(name) ? " *" : ""], kind(field), [field.description ?? ""]]);
  return [make("p", {}, schema.description ?? ""), rows.length ? table(rows) : make("p", {}, ...kind(schema))];
}

function route(method, path, operation) {
  const body = operation.requestBody?.content["application/json"].schema;
  const parameters = (operation.parameters ?? []).map(({ name, schema }) => [[code(name)], kind(schema)]);
  const answers = Object.entries(operation.responses).map(([status, { description, content = {} }]) =>
    [[status], [description], between(Object.entries(content).map(([media, { schema }]) => [code(media), " ", ...kind(schema)]), " or ")]);
  return fold("", [make("b", {}, method.toUpperCase()), code(path)],
    make("p", {}, operation.description ?? ""), table(parameters),
    ...(body ? [make("h3", {}, "Body"), make("p", {}, ...kind(body))] : []), make("h3", {}, "Answers"), table(answers));
}

/** A link to an object opens it. */
function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) target.open = true;
  target?.scrollIntoView();
}

/** The document; asked for with the key from the settings of the chat page, if there is one. */
async function load() {
  const { key } = JSON.parse(localStorage.getItem("headrace.settings") ?? "{}");
  const answer = await fetch("openapi.json", { headers: key ? { Authorization: `Bearer ${key.trim()}` } : {} });
  if (answer.ok) return answer.json();
  const reason = (await answer.json()).error.message;
  document.querySelector("main").append(make("p", { role: "alert" }, `${reason}. Set it in the settings of the chat page.`));
  throw new Error(reason);
}

const { info, paths, components } = await load();
document.title = `${info.title} ${info.version}: API`;
document.querySelector("header span").textContent = info.description;
document.querySelector("main").append(
  make("h2", {}, "Routes"),
  ...Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => route(method, path, one))),
  make("h2", {}, "Objects"),
  ...Object.entries(components.schemas).sort().map(([name, schema]) => fold(name, [code(name)], ...fields(schema))));
addEventListener("hashchange", open);
open();
