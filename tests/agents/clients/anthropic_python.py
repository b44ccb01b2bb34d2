"""The official Python SDK of Anthropic: python anthropic_python.py messages WORDS…, one turn for each.

Prints the answers as a JSON list. A reply that is cut is asked for again, as the SDK's users do.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import anthropic

WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ATTEMPTS = 60
client = anthropic.Anthropic(max_retries=0)


def patiently(ask: Any) -> Any:
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except anthropic.BadRequestError:
            raise
        except Exception as error:
            known = type(error).__module__.split(".")[0] in (
                "httpx",
                "httpcore",
                "anthropic",
                "httpx2",
                "httpcore2",
            )
            if not known or attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.5)
    raise AssertionError


def main(turns: list[str]) -> list[str]:
    messages: list[Any] = []

    def once() -> Any:
        with client.messages.stream(
            model="mock", max_tokens=1000, messages=messages, tools=[WEATHER]
        ) as stream:
            return stream.get_final_message()

    answers = []
    for words in turns:
        messages.append({"role": "user", "content": words})
        while True:
            message = patiently(once)
            messages.append(
                {
                    "role": "assistant",
                    "content": [block.model_dump(exclude_none=True) for block in message.content],
                }
            )
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                break
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": "tide-42"} for call in calls
            ]
            messages.append({"role": "user", "content": results})
        answers.append("".join(block.text for block in message.content if block.type == "text"))
    return answers


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[2:])))
