"""An agent of Google's ADK whose session is stored by holdfast. Kill it while the tool runs, run it again.

    python google_adk_agent.py sqlite:///agent.db "How deep is it here?"

The model is scripted, so that no key is needed: it calls the tool once, then says what the tool returned.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from holdfast.adapters.google_adk import HoldfastSessionService


class ScriptedModel(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            said = types.Part(text=f"The sounding says {last.function_response.response['result']}.")
        else:
            said = types.Part(function_call=types.FunctionCall(name="sound", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[said]))


async def sound() -> dict[str, Any]:
    """How deep the water is."""
    print("sounding …", flush=True)
    await asyncio.sleep(2)
    return {"result": "nine fathoms"}


async def main(url: str, text: str) -> None:
    service = HoldfastSessionService(url)
    who = {"app_name": "ship", "user_id": "ada", "session_id": "voyage"}
    if await service.get_session(**who) is None:
        await service.create_session(**who)
    agent = LlmAgent(name="sailor", model=ScriptedModel(model="scripted"), tools=[sound])
    runner = Runner(app_name="ship", agent=agent, session_service=service)
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for event in runner.run_async(user_id="ada", session_id="voyage", new_message=message):
        if event.is_final_response() and event.content:
            print(event.content.parts[0].text)


asyncio.run(main(*sys.argv[1:3]))
