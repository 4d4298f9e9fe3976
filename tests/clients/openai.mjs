// The official npm client against two servers: one whose model says what it is told, one with the bundled model.
// usage: node openai.mjs ECHO_URL TALE_URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const [echoUrl, taleUrl] = process.argv.slice(2);
const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const echo = client(echoUrl);
const tale = client(taleUrl);

const ask = (content) => ({ model: "tiny", messages: [{ role: "user", content }] });
const schema = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
// Not strict: the echoing engine compiles no grammars.
const flat = [{ type: "function", name: "weather", parameters: schema, strict: false }];
const call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';

const checks = {
  async models() {
    const names = (await echo.models.list()).data.map((model) => model.id);
    assert.ok(names.includes("tiny"));
  },

  async chat() {
    const answer = await echo.chat.completions.create(ask("Hello ü"));
    assert.equal(answer.choices[0].message.content, "Hello ü");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async stream() {
    let text = "";
    let usage = null;
    const stream = await echo.chat.completions.create({
      ...ask("One two three ü"), stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, "One two three ü");
    assert.ok(usage.completion_tokens > 0);
  },

  async tools() {
    const { message, finish_reason } = (await echo.chat.completions.create({ ...ask(call), tools })).choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.equal(message.content, null);
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Oslo" });
  },

  async toolsStreamed() {
    const stream = echo.chat.completions.stream({ ...ask(`Let me see. ${call}`), tools });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    assert.equal(message.content, "Let me see.");
    assert.equal(message.tool_calls[0].function.name, "weather");
    assert.equal(message.tool_calls[0].function.arguments, '{"city": "Oslo"}');
  },

  async toolsRunByTheClient() {
    // The model repeats the last user's words, so it calls again and again; the client's loop has an end.
    let asked = 0;
    const runner = echo.chat.completions.runTools(
      {
        ...ask(call),
        tools: [{
          type: "function",
          function: {
            name: "weather", parameters: schema, parse: JSON.parse,
            function: ({ city }) => { asked += 1; return `rain in ${city}`; },
          },
        }],
      },
      { maxChatCompletions: 2 },
    );
    await runner.done();
    assert.ok(asked >= 1);
  },

  async forcedTool() {
    const answer = await tale.chat.completions.create({
      model: "tale", messages: [{ role: "user", content: "Weather?" }], tools, tool_choice: "required",
      parallel_tool_calls: false, max_tokens: 100,
    });
    const made = answer.choices[0].message.tool_calls;
    assert.equal(made.length, 1);
    assert.ok(["Oslo", "Rome"].includes(JSON.parse(made[0].function.arguments).city));
  },

  async structuredOutput() {
    const answer = await tale.chat.completions.create({
      model: "tale", messages: [{ role: "user", content: "Where?" }], max_tokens: 100,
      response_format: { type: "json_schema", json_schema: { name: "place", schema, strict: true } },
    });
    assert.ok(["Oslo", "Rome"].includes(JSON.parse(answer.choices[0].message.content).city));
  },

  async responses() {
    const answer = await echo.responses.create({ model: "tiny", input: `I look. ${call}`, tools: flat });
    assert.equal(answer.status, "completed");
    assert.equal(answer.output_text, "I look.");
    assert.equal(answer.output[1].arguments, '{"city": "Oslo"}');
  },

  async responsesStreamed() {
    const kinds = [];
    let text = "";
    for await (const event of await echo.responses.create({ model: "tiny", input: "One two", stream: true })) {
      assert.equal(event.sequence_number, kinds.length);
      kinds.push(event.type);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, "One two");
    assert.equal(kinds[0], "response.created");
    assert.equal(kinds.at(-1), "response.completed");
    const final = await echo.responses.stream({ model: "tiny", input: "One two" }).finalResponse();
    assert.equal(final.output_text, "One two");
  },

  async structuredResponse() {
    const answer = await tale.responses.create({
      model: "tale", input: "Where?", max_output_tokens: 100,
      text: { format: { type: "json_schema", name: "place", schema, strict: true } },
    });
    assert.ok(["Oslo", "Rome"].includes(JSON.parse(answer.output_text).city));
  },

  async embeddings() {
    const answer = await tale.embeddings.create({ model: "tale", input: ["a mill", "a duck"] });
    assert.equal(answer.data.length, 2);
    assert.ok(answer.data[0].embedding.length > 8);
    assert.ok(answer.data[0].embedding.every(Number.isFinite));
  },

  async abort() {
    const stream = await tale.chat.completions.create({
      model: "tale", messages: [{ role: "user", content: "A long story!" }], stream: true, max_tokens: 500,
      ignore_eos: true,
    });
    let chunks = 0;
    for await (const chunk of stream) {
      assert.equal(chunk.object, "chat.completion.chunk");
      if (++chunks === 5) stream.controller.abort();
    }
    assert.ok(chunks < 200);
  },

  async refusals() {
    await assert.rejects(echo.chat.completions.create({ ...ask("x"), model: "other" }), OpenAI.NotFoundError);
    await assert.rejects(echo.chat.completions.create({ ...ask("x"), temperature: -1 }), OpenAI.BadRequestError);
    await assert.rejects(
      echo.responses.create({ model: "tiny", input: "x", previous_response_id: "resp_1" }), OpenAI.BadRequestError,
    );
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}: ${error.stack ?? error}`);
  }
}
process.exit(failed ? 1 : 0);
