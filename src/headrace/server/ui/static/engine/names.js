// What the feed calls a request, computed from the id of its answer; `lane_names.py` is the other side.

const KINDS = { chatcmpl: "chat", cmpl: "text", resp: "response" };

export function laneName(answerId) {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(answerId)) value = Math.imul(value ^ byte, 0x01000193) >>> 0;
  const kind = KINDS[answerId.split("-")[0]] ?? "request";
  return `${kind} ${value.toString(16).padStart(8, "0").slice(0, 6)}`;
}
