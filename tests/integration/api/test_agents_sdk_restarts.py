"""The `openai-agents` SDK in a long loop of its own tools, while `holdfast serve` is killed three times.

The SDK's client sends a request again when its connection breaks. That request is the turn which the dead
server had begun: it is taken up, or joined if the server has taken it up by itself. So the loop ends with its
answer, every tool has run once, and the conversation holds everything once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)

from tests.acceptance.command import Home
from tests.acceptance.talker import Talker
from tests.integration.api.test_recovery_restarts import asked, home, talker
from tests.integration.api.test_responses_restarts import TOKEN, Serving
from tests.reliability.serving import reserved_ports

__all__ = ["home", "talker"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so")

STEPS = 4
KILLED_AT = (1, 3, 5)
"""The requests of the loop during which the server is killed: the first, one in the middle, the last."""


async def _attack(talker: Talker, start: Callable[[], Serving]) -> Serving:
    """Answer request after request, and kill the server during some; returns the last server."""
    server, calls = start(), 0
    for number in range(1, STEPS + 2):
        calls += 1
        if number in KILLED_AT:
            await asked(talker, calls)
            server.kill()
            await server.close()
            server = start()
            calls += 1
            await asked(talker, calls)
        if number <= STEPS:
            talker.call("step", number=number)
            talker.finish()
        else:
            talker.answer("all done")
    return server


@pytest.mark.parametrize("recover", ["background", "all"])
@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_a_long_tool_loop_ends_with_its_answer_across_three_kills(
    home: Home, talker: Talker, kind: type[Model], recover: str
) -> None:
    home.environment["HOLDFAST_TURNS__RECOVER"] = recover
    run: list[int] = []

    @function_tool
    def step(number: int) -> str:
        """Take a step."""
        run.append(number)
        return f"step {number} is done"

    with reserved_ports(1) as (port,):
        attack = asyncio.create_task(_attack(talker, lambda: Serving(home, port)))
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=TOKEN, max_retries=20)
        model: Any = kind(model="talker", openai_client=client)  # type: ignore[call-arg]
        agent = Agent(name="walker", instructions="Go on.", model=model, tools=[step])
        answer = await Runner.run(
            agent, "walk to the end", max_turns=20, run_config=RunConfig(tracing_disabled=True)
        )
        server = await attack
        try:
            assert answer.final_output == "all done"
            assert run == [1, 2, 3, 4]
            assert len(talker.requests) == STEPS + 1 + len(KILLED_AT)
            (session,) = (await server.client.get("/api/sessions")).json()["data"]
            listed = (await server.client.get(f"/api/sessions/{session['id']}/messages")).json()["data"]
            assert [message["role"] for message in listed if message["status"] == "completed"] == [
                "user",
                *["assistant", "tool"] * STEPS,
                "assistant",
            ]
            turns = (await server.client.get(f"/api/sessions/{session['id']}/turns")).json()["data"]
            assert [turn["status"] for turn in turns] == ["completed"] * (STEPS + 1)
            assert sorted(turn["attempt"] for turn in turns) == [1, 1, 2, 2, 2]
        finally:
            await client.close()
            await server.close()
