// OpenAI's SDK for Node: node openai_node.mjs chat|responses WORDS…, one turn for each. Prints a JSON list of the
// answers. A reply that is cut is asked for again, as the SDK's users do.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const weather = {
  name: "weather",
  description: "The weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

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

async function chat(turns) {
  const messages = [];
  const tools = [{ type: "function", function: weather }];
  const once = async () => {
    const stream = client.chat.completions.stream({ model: "mock", messages, tools });
    const completion = await stream.finalChatCompletion();
    return completion.choices[0].message;
  };
  const answers = [];
  for (const words of turns) {
    messages.push({ role: "user", content: words });
    let message = await patiently(once);
    while (message.tool_calls?.length) {
      messages.push(message);
      for (const call of message.tool_calls)
        messages.push({ role: "tool", tool_call_id: call.id, content: "tide-42" });
      message = await patiently(once);
    }
    messages.push(message);
    answers.push(message.content);
  }
  return answers;
}

async function responses(turns) {
  const tools = [{ type: "function", ...weather }];
  let previous;
  const once = async (input) =>
    await client.responses.stream({ model: "mock", input, tools, previous_response_id: previous }).finalResponse();
  const answers = [];
  for (const words of turns) {
    let response = await patiently(() => once([{ role: "user", content: words }]));
    for (;;) {
      previous = response.id;
      const calls = response.output.filter((item) => item.type === "function_call");
      if (!calls.length) break;
      const results = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "tide-42" }));
      response = await patiently(() => once(results));
    }
    answers.push(response.output_text);
  }
  return answers;
}

const [api, ...turns] = process.argv.slice(2);
console.log(JSON.stringify(await { chat, responses }[api](turns)));
