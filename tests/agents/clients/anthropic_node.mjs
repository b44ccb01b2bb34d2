// Anthropic's SDK for Node: node anthropic_node.mjs messages WORDS…, one turn for each. Prints a JSON list of the
// answers. A reply that is cut is asked for again, as the SDK's users do.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ maxRetries: 0 });
const weather = {
  name: "weather",
  description: "The weather of a city",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const messages = [];

async function patiently(ask) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (error?.status === 400 || attempt === 60) throw error;
      await new Promise((done) => setTimeout(done, 500));
    }
  }
}

const once = async () =>
  await client.messages.stream({ model: "mock", max_tokens: 1000, messages, tools: [weather] }).finalMessage();
const answers = [];
for (const words of process.argv.slice(3)) {
  messages.push({ role: "user", content: words });
  for (;;) {
    const message = await patiently(once);
    messages.push({ role: "assistant", content: message.content });
    const calls = message.content.filter((block) => block.type === "tool_use");
    if (!calls.length) {
      answers.push(message.content.filter((block) => block.type === "text").map((block) => block.text).join(""));
      break;
    }
    messages.push({
      role: "user",
      content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "tide-42" })),
    });
  }
}
console.log(JSON.stringify(answers));
