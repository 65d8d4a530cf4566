"""Run Pydantic AI."""

from __future__ import annotations

from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.worker import Turn


async def echo(text: str) -> str:
    """Says it again."""
    return text


def turn_of(url: str) -> Turn:
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="k"))
    agent = Agent(model, tools=[echo])

    async def turn(scenario: str) -> str:
        said = ""
        async with agent.run_stream_events(f"script:{scenario}") as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    said = event.result.output
        return said

    return turn
