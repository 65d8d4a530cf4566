"""ask_user, write_todos, task, compact_conversation: what a tool does with other parties and with its own session."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.events import Option, Todo

#: How long a person has to answer (seed 001).
PATIENCE_S = 300.0

Words = Annotated[str, Meta(min_length=1)]


# --- a person


@tool
async def ask_user(question: Words, context: ToolContext, options: list[Words] = []) -> Outcome:  # noqa: B006  # never changed
    """Asks the person a question and waits for the answer. Use it when you cannot go on without knowing.

    Args:
        question: what you want to know
        options: answers to choose from; the person may also answer in other words
    """
    offered = tuple(Option(id=str(number), label=text) for number, text in enumerate(options, 1))
    try:
        answer = await context.ask(question, offered, PATIENCE_S)
    except TimeoutError:
        return Outcome(
            f"nobody answered within {PATIENCE_S / 60:g} minutes; go on as well as you can without an answer, or stop",
            ok=False,
        )
    return Outcome(next((one.label for one in offered if one.id == answer), answer))


# --- the list


class TodoItem(Struct, forbid_unknown_fields=True):
    """One thing to do."""

    content: Annotated[str, Meta(min_length=1, description="what is to be done")]
    status: Annotated[
        Literal["pending", "in_progress", "completed", "cancelled"], Meta(description="how far it is")
    ] = "pending"
    id: Annotated[str, Meta(description="its name, if you want to keep it over changes; its place otherwise")] = ""


@tool(parallel=False)
async def write_todos(todos: list[TodoItem], context: ToolContext) -> Outcome:
    """Writes your list of things to do, for the person to see. Always the whole list: what is left out is gone.

    Args:
        todos: all of them, in the order in which they are to be done
    """
    named = [Todo(id=one.id or str(at), content=one.content, status=one.status) for at, one in enumerate(todos, 1)]
    twice = sorted({one.id for one in named if sum(other.id == one.id for other in named) > 1})
    if twice:
        return Outcome(f"argument todos: the id {', '.join(twice)} is there twice; nothing was changed", ok=False)
    context.set_todos(named)
    return Outcome(_counted(named))


def _counted(todos: list[Todo]) -> str:
    if not todos:
        return "the list is empty"
    counts = {
        status: sum(one.status == status for one in todos) for status in dict.fromkeys(one.status for one in todos)
    }
    told = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    return f"{len(todos)} on the list: {told}"


# --- another agent


@tool
async def task(description: Words, prompt: Words, context: ToolContext, kind: str = "") -> Outcome:
    """Has another agent do a part of the work by itself. It sees nothing of this conversation, and its last text is all
    that comes back, so say in the prompt everything that it needs to know and what it has to tell you.

    Args:
        description: what it is about, in a few words, for the person to see
        prompt: the whole task
        kind: which agent, if there are several
    """
    return await context.delegate(description, prompt, kind)


# --- the conversation


@tool(parallel=False)
async def compact_conversation(context: ToolContext) -> Outcome:
    """Replaces the older part of this conversation by a summary, to make room. It happens after this step."""
    count = await context.compact()
    return Outcome(f"after this step a summary takes the place of up to {count} messages")
