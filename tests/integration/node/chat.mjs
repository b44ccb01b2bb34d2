// Talks to the server at OPENAI_BASE_URL as a Node program would, and prints what it saw as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const model = "m";
const hello = [{ role: "user", content: "hello from Node" }];
const seen = {};

// A whole answer, with its ids in a header and in the JSON.
const whole = await client.chat.completions.create({ model, messages: hello }).withResponse();
seen.text = whole.data.choices[0].message.content;
seen.ids = whole.data.holdfast;
seen.header = whole.response.headers.get("x-holdfast-session-id");

// A stream that goes on in the same conversation.
const headers = { "X-Holdfast-Session-Id": seen.ids.session_id };
const stream = await client.chat.completions.create(
  { model, messages: [{ role: "user", content: "and again" }], stream: true },
  { headers },
);
seen.streamed = "";
for await (const chunk of stream) {
  seen.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.holdfast) seen.last = { ...chunk.holdfast, finish_reason: chunk.choices[0].finish_reason };
}

// The SDK's own helper for streams, and a tool over two requests.
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
const question = { role: "user", content: "use the tool" };
const runner = client.chat.completions.stream({ model, messages: [question], tools });
const message = await runner.finalMessage();
seen.call = message.tool_calls[0].function.name;
const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "rain" };
const told = await client.chat.completions.create({ model, messages: [question, message, result], tools });
seen.told = told.choices[0].message.content;

// The same request again is the same answer; another under its key is a conflict that is not retried.
const idempotent = { headers: { "Idempotency-Key": "node-1" } };
const first = await client.chat.completions.create({ model, messages: hello }, idempotent);
const again = await client.chat.completions.create({ model, messages: hello }, idempotent);
seen.same = first.holdfast.turn_id === again.holdfast.turn_id;
try {
  await client.chat.completions.create({ model, messages: [question] }, { ...idempotent, maxRetries: 3 });
} catch (error) {
  seen.conflict = { status: error.status, code: error.code };
}

// An error in the middle of a stream, and one before its first word.
const broken = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "break off" }],
  stream: true,
});
seen.half = "";
try {
  for await (const chunk of broken) seen.half += chunk.choices[0]?.delta?.content ?? "";
} catch (error) {
  seen.broken = error.error?.code ?? error.code ?? error.message;
}
try {
  await client.chat.completions.create({
    model,
    messages: [{ role: "user", content: "refuse" }],
    stream: true,
  });
} catch (error) {
  seen.refused = error.status;
}
console.log(JSON.stringify(seen));
