"""A durable chat in the terminal, with whatever model there is: what `make run` starts.

Without any key or server it is the small local model that answers. Everything said is kept in the store of
`HOLDFAST_HOME`; stop it however you like, `kill -9` included, and it goes on where it was.
"""

import asyncio
import os
import sys

import holdfast
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.models.base import Chunk, Model
from holdfast.models.choose import choose
from holdfast.runtime.turn_runner import TurnRunner


def show(chunk: Chunk) -> None:
    print(chunk.adds.get("content", ""), end="", flush=True)


async def greet(hf: Holdfast, session: holdfast.LiveSession, model: Model) -> None:
    messages = await session.messages("conversation")
    print(f"{model.description} answers. The conversation is kept in {hf.store.location}.")
    if messages:
        cut = " The last reply was interrupted." if messages[-1].status == "interrupted" else ""
        print(f"Going on with {len(messages)} messages.{cut}")
    print("Say something; an empty line or Ctrl-D leaves.\n")


async def chat() -> None:
    async with holdfast.open() as hf:
        wanted = hf.settings.model
        key = os.environ.get(wanted.api_key_env, "")
        model = await choose(wanted.kind, wanted.base_url, wanted.name, key, wanted.timeout_seconds)
        session = await hf.session(key="cli:chat")
        await greet(hf, session, model)
        while said := (await asyncio.to_thread(ask)).strip():
            try:
                async with session.turn(said) as turn:
                    await TurnRunner(hf.store).answer(
                        turn, model, instructions=hf.settings.agent.system_prompt, listen=show
                    )
            except holdfast.HoldfastError as error:
                print(f"\n{error}", file=sys.stderr)
            print("\n")
        await model.close()


def ask() -> str:
    try:
        return input("> ")
    except EOFError:
        return ""


if __name__ == "__main__":
    try:
        asyncio.run(chat())
    except KeyboardInterrupt:
        print("\nEverything said so far is kept.")
    except HoldfastError as error:
        sys.exit(str(error))
