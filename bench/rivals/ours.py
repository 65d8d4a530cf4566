"""Run the built-in agent. A new conversation is a new agent here: creating, prompting and stopping it all count."""

from __future__ import annotations

import quarterdeck
from bench.engine import agent_of
from bench.worker import Turn
from quarterdeck.engine.agent import Agent
from quarterdeck.log.memory import MemoryLog


@quarterdeck.tool
async def echo(text: str) -> str:
    """Says it again."""
    return text


def turn_of(url: str) -> Turn:
    async def turn(scenario: str) -> str:
        agent: Agent
        async with agent_of(url, MemoryLog(), echo) as agent:
            events = agent.subscribe()
            await agent.prompt(f"script:{scenario}")
            async for event in events:
                if event.type == "agent_end":
                    break
            return await agent.collect_reply()

    return turn
