// Talking to the server: streams of events, and its refusals in words.

/** A refusal. `status` is 0 where there was no answer at all. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Raises Refusal for a key that no header can hold, such as one that was pasted with typographic quotes. */
export function headers(key, json = false) {
  const all = {};
  const odd = /[^!-~]/u.exec(key);
  if (odd) throw new Refusal(`The key holds the character “${odd[0]}”, which no key has. Enter it again.`, 401);
  if (key) all.Authorization = `Bearer ${key}`;
  if (json) all["Content-Type"] = "application/json";
  return all;
}

/** The answer to a request, if it is a good one. Raises Refusal, or AbortError. */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server cannot be reached. Is it still running?", 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const post = async (path, body, key, signal) =>
  ask(path, { method: "POST", headers: headers(key, true), body: JSON.stringify(body), signal });

async function refusal(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    said = response.statusText;
  }
  const wait = Number(response.headers.get("Retry-After"));
  const text = typeof said === "string" && said ? sentence(said) : `The server answered ${response.status}.`;
  switch (response.status) {
    case 401:
      return new Refusal(`This server asks for a key: ${lower(text)}`, response.status);
    case 429:
      return new Refusal(`Too much at once: ${lower(text)}${wait ? ` Try again in ${wait} s.` : ""}`, 429);
    case 503:
      return new Refusal(`The engine is away: ${lower(text)}`, 503);
    default:
      return new Refusal(text, response.status);
  }
}

const lower = (text) => text.charAt(0).toLowerCase() + text.slice(1);

export function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

const MAX_EVENT_CHARS = 4_000_000;

/** The JSON objects of an event stream, as they come. Raises Refusal for one that ends without its last event. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Refusal("The connection broke off.", 0);
      }
      if (part.done) throw new Refusal("The connection ended before the answer did.", 0);
      rest += part.value;
      const pieces = rest.split("\n\n");
      rest = pieces.pop();
      if (rest.length > MAX_EVENT_CHARS) throw new Refusal("The server sent something else than events.", 0);
      for (const piece of pieces) {
        const data = piece
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart())
          .join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
