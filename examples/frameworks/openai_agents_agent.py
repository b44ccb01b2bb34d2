"""An agent of the OpenAI Agents SDK, stored by holdfast. Kill it while the tool runs, and run it again.

    python openai_agents_agent.py sqlite:///agent.db "How deep is it here?"

The model is scripted, so that no key is needed: it calls the tool once, then says what the tool returned.
"""

import asyncio
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from holdfast.adapters.openai_agents import HoldfastSession


class ScriptedModel(Model):
    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        last = items[-1]
        output: Any
        if last.get("type") == "function_call_output":
            said = ResponseOutputText(
                type="output_text", text=f"The sounding says {last['output']}.", annotations=[]
            )
            output = ResponseOutputMessage(
                id="msg", type="message", role="assistant", status="completed", content=[said]
            )
        else:
            output = ResponseFunctionToolCall(
                type="function_call", call_id=f"call-{len(items)}", name="sound", arguments="{}"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this example does not stream")


@function_tool
async def sound() -> str:
    """How deep the water is."""
    print("sounding …", flush=True)
    await asyncio.sleep(2)
    return "nine fathoms"


async def main(url: str, text: str) -> None:
    set_tracing_disabled(True)
    session = HoldfastSession("voyage", url)
    agent = Agent(name="Sailor", model=ScriptedModel(), tools=[sound])
    result = await Runner.run(agent, text, session=session)
    print(result.final_output)


asyncio.run(main(*sys.argv[1:3]))
