// Ollama's official npm client against two servers: one whose model says what it is told, one with the bundled model.
// usage: node ollama.mjs ECHO_URL TALE_URL
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const [echoUrl, taleUrl] = process.argv.slice(2);
const echo = new Ollama({ host: echoUrl });
const tale = new Ollama({ host: taleUrl });

const ask = (content) => ({ model: "tiny", messages: [{ role: "user", content }] });
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "", parameters: schema } }];
const call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';

const checks = {
  async list() {
    assert.deepEqual((await echo.list()).models.map((model) => model.name), ["tiny", "alias"]);
    assert.equal((await tale.ps()).models[0].name, "tale");
  },

  async chat() {
    const answer = await echo.chat(ask("Hello ü"));
    assert.equal(answer.message.content, "Hello ü");
    assert.equal(answer.done_reason, "stop");
    assert.ok(answer.eval_count > 0 && answer.total_duration > 0);
  },

  async stream() {
    let text = "";
    let last = null;
    for await (const part of await echo.chat({ ...ask("One two three ü"), stream: true })) {
      text += part.message.content;
      last = part;
    }
    assert.equal(text, "One two three ü");
    assert.ok(last.done && last.eval_count > 0);
  },

  async tools() {
    const { message } = await echo.chat({ ...ask(call), tools });
    assert.deepEqual(message.tool_calls[0].function.arguments, { city: "Oslo" });
  },

  async thinking() {
    const { message } = await echo.chat({ ...ask("<think>Hm.</think>So."), think: true });
    assert.deepEqual([message.thinking, message.content], ["Hm.", "So."]);
  },

  async generate() {
    const options = { temperature: 0, num_predict: 12 };
    const answer = await tale.generate({ model: "tale", prompt: "Once upon a time", raw: true, options });
    assert.equal(answer.eval_count, 12);
    let text = "";
    const stream = await tale.generate({ model: "tale", prompt: "Once upon a time", raw: true, options, stream: true });
    for await (const part of stream) {
      text += part.response;
    }
    assert.equal(text, answer.response);
  },

  async formats() {
    const format = { type: "object", properties: { age: { enum: [3, 4] } }, required: ["age"], additionalProperties: false };
    const options = { num_predict: 200, seed: 3 };
    const answer = await tale.chat({ ...ask("A cat."), model: "tale", format, options });
    assert.ok([3, 4].includes(JSON.parse(answer.message.content).age));
  },

  async embed() {
    const answer = await tale.embed({ model: "tale", input: ["A cat.", "A dog."] });
    assert.equal(answer.embeddings.length, 2);
    const squares = answer.embeddings[0].map((value) => value * value);
    assert.ok(Math.abs(squares.reduce((sum, value) => sum + value, 0) - 1) < 1e-4);
  },

  async show() {
    const shown = await tale.show({ model: "tale" });
    assert.ok(shown.capabilities.includes("completion"));
    assert.ok(shown.model_info["general.parameter_count"] > 1e6);
  },

  async errors() {
    await assert.rejects(echo.chat({ ...ask("Hi"), model: "llama3.2" }), /is not served here/);
    await assert.rejects(echo.chat({ ...ask("Hi"), options: { temprature: 1 } }), /temperature/);
  },

  async abort() {
    const stream = await tale.generate({ model: "tale", prompt: "Once", raw: true, stream: true });
    let parts = 0;
    await assert.rejects(async () => {
      for await (const part of stream) {
        parts += part.response.length > 0;
        stream.abort();
      }
    }, { name: "AbortError" });
    assert.ok(parts > 0);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    failed = 1;
    console.log(`FAILED ${name}: ${error.stack}`);
  }
}
process.exit(failed);
