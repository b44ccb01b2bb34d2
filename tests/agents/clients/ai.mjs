// Vercel's AI SDK: node ai.mjs openai|openai-chat|anthropic|open-responses WORDS…, one turn for each. Prints a JSON
// list of the answers. A reply that is cut is asked for again, as the SDK's users do.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { createOpenAI } from "@ai-sdk/openai";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [api, ...turns] = process.argv.slice(2);
const [base, apiKey] = [process.env.OPENAI_BASE_URL, process.env.OPENAI_API_KEY];
const model = {
  openai: () => createOpenAI({ baseURL: base, apiKey }).responses("mock"),
  "openai-chat": () => createOpenAI({ baseURL: base, apiKey }).chat("mock"),
  anthropic: () => createAnthropic({ baseURL: base, apiKey })("mock"),
  "open-responses": () => createOpenResponses({ name: "holdfast", url: `${base}/responses`, apiKey })("mock"),
}[api]();
const tools = {
  weather: tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async () => "tide-42",
  }),
};
const messages = [];

async function once() {
  let failure;
  const result = streamText({
    model,
    messages,
    tools,
    stopWhen: stepCountIs(4),
    maxRetries: 0,
    onError: ({ error }) => {
      failure = error;
    },
  });
  const text = await result.text;
  if (failure) throw failure;
  const reason = await result.finishReason;
  if (reason !== "stop") throw new Error(`ended with ${reason}`);
  return [text, (await result.steps).flatMap((step) => step.response.messages)];
}

async function patiently(ask) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (error?.statusCode === 400 || attempt === 60) throw error;
      await new Promise((done) => setTimeout(done, 500));
    }
  }
}

const answers = [];
for (const words of turns) {
  messages.push({ role: "user", content: words });
  const [text, added] = await patiently(once);
  messages.push(...added);
  answers.push(text);
}
console.log(JSON.stringify(answers));
