"""Run LangGraph's own prebuilt agent, with LangChain's client."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

from bench.worker import Turn


async def echo(text: str) -> str:
    """Says it again."""
    return text


def turn_of(url: str) -> Turn:
    agent = create_react_agent(ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="k", streaming=True), [echo])

    async def turn(scenario: str) -> str:
        asked = {"messages": [{"role": "user", "content": f"script:{scenario}"}]}
        said = ""
        async for mode, told in agent.astream(asked, {"recursion_limit": 50}, stream_mode=["messages", "updates"]):
            if mode == "updates" and "agent" in told:
                said = told["agent"]["messages"][-1].content
        return said

    return turn
