"""A small agent whose conversation survives anything: the library in sixty lines.

    python examples/agent.py m1 "My name is Ada."
    python examples/agent.py m2 "What time is it?"

The first word is the message's id, as a chat platform would give it. Kill the program with `kill -9` while
it answers and run the same line again: the question is there once, the half answer gives way to a whole
one, and no tool that has finished is run again. It brings its own stand-in for a model, so that it runs
anywhere; put a real client into `model` and the rest stays as it is.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import holdfast

Message = dict[str, Any]


async def model(messages: list[Message]) -> AsyncIterator[str | Message]:
    """Stands in for a model: yields pieces of text, or a tool call. Replace it with your client."""
    last = messages[-1]
    if last["role"] == "user" and "time" in last["content"]:
        yield {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
        return
    heard = "; ".join(message["content"] for message in messages if message["role"] == "user")
    said = f"It is {last['content']}." if last["role"] == "tool" else f"So far you have told me: {heard}"
    for word in said.split():
        await asyncio.sleep(0.1)
        yield word + " "


def clock() -> str:
    return time.strftime("%H:%M")


async def answer(turn: holdfast.LiveTurn) -> None:
    """Ask the model until it has said its last word; everything is on disk as it happens."""
    while True:
        text, calls = "", []
        async for piece in model(await turn.context()):
            if isinstance(piece, str):
                text += piece
                print(piece, end="", flush=True)
                await turn.draft(text)  # what a crash would keep
            else:
                calls.append(piece)
        if not calls:
            await turn.append({"role": "assistant", "content": text.strip()})
            print()
            return
        await turn.append({"role": "assistant", "content": None, "tool_calls": calls})
        for call in calls:
            await turn.append({"role": "tool", "tool_call_id": call["id"], "content": clock()})


async def main(message_id: str, text: str) -> None:
    async with holdfast.open("sqlite:///agent.db") as hf:
        session = await hf.session(key="cli:example")
        async with session.turn(text, request_id=message_id) as turn:
            if turn.repeated:
                print("(answered before)", (await turn.reply() or {}).get("content"))
            else:
                await answer(turn)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]) if len(sys.argv) == 3 else main("m1", "Hello!"))
