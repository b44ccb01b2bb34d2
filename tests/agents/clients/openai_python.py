"""The official Python SDK of OpenAI: python openai_python.py chat|responses WORDS…, one turn for each.

Prints the answers as a JSON list. A reply that is cut is asked for again, as the SDK's users do.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import openai

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ATTEMPTS = 60
client = openai.OpenAI(max_retries=0)


def patiently(ask: Any) -> Any:
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except openai.BadRequestError:
            raise
        except Exception as error:
            known = type(error).__module__.split(".")[0] in ("openai", "httpx", "httpcore")
            if not known or attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.5)
    raise AssertionError


def chat(turns: list[str]) -> list[str]:
    messages: list[Any] = []
    tools: Any = [{"type": "function", "function": WEATHER}]

    def once() -> tuple[str, list[Any]]:
        stream = client.chat.completions.create(model="mock", messages=messages, tools=tools, stream=True)
        text = ""
        calls: dict[int, Any] = {}
        ended = False
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    at = calls.setdefault(
                        call.index,
                        {"id": call.id, "type": "function", "function": {"name": "", "arguments": ""}},
                    )
                    if call.function:
                        at["function"]["name"] += call.function.name or ""
                        at["function"]["arguments"] += call.function.arguments or ""
                ended = ended or choice.finish_reason is not None
        if not ended:
            raise openai.APIConnectionError(message="the stream was cut", request=None)  # type: ignore[arg-type]
        return text, list(calls.values())

    answers = []
    for words in turns:
        messages.append({"role": "user", "content": words})
        text, calls = patiently(once)
        while calls:
            messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
            messages.extend(
                {"role": "tool", "tool_call_id": call["id"], "content": "tide-42"} for call in calls
            )
            text, calls = patiently(once)
        messages.append({"role": "assistant", "content": text})
        answers.append(text)
    return answers


def responses(turns: list[str]) -> list[str]:
    tools: Any = [{"type": "function", **WEATHER}]
    previous: str | None = None

    def once(given: Any) -> Any:
        with client.responses.stream(
            model="mock", input=given, tools=tools, previous_response_id=previous
        ) as stream:
            return stream.get_final_response()

    answers = []
    for words in turns:
        response = patiently(partial(once, [{"role": "user", "content": words}]))
        while calls := [item for item in response.output if item.type == "function_call"]:
            previous = response.id
            results = [
                {"type": "function_call_output", "call_id": call.call_id, "output": "tide-42"}
                for call in calls
            ]
            response = patiently(partial(once, results))
        previous = response.id
        answers.append(response.output_text)
    return answers


if __name__ == "__main__":
    ask = {"chat": chat, "responses": responses}[sys.argv[1]]
    print(json.dumps(ask(sys.argv[2:])))
