"""Run OpenAI's Agents SDK."""

from __future__ import annotations

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from bench.worker import Turn


@function_tool
async def echo(text: str) -> str:
    """Says it again."""
    return text


def turn_of(url: str) -> Turn:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="k")
    agent = Agent(name="a", model=OpenAIChatCompletionsModel(model="m", openai_client=client), tools=[echo])

    async def turn(scenario: str) -> str:
        run = Runner.run_streamed(agent, f"script:{scenario}", max_turns=20)
        async for _ in run.stream_events():
            pass
        return run.final_output

    return turn
