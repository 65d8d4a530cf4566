"""The tools ask_user, write_todos, task and compact_conversation, which work on the session itself."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.events import Option, Todo

#: How long ask_user waits for an answer.
ANSWER_TIMEOUT_S = 300.0

NonEmptyText = Annotated[str, Meta(min_length=1)]


@tool
async def ask_user(
    question: NonEmptyText,
    context: ToolContext,
    options: list[NonEmptyText] = [],  # noqa: B006  # never changed
) -> Outcome:
    """Ask the user a question and wait for the answer. Use it only if you can't continue without the answer.

    Args:
        question: the question
        options: suggested answers; the user may also answer in other words
    """
    offered = tuple(Option(id=str(number), label=text) for number, text in enumerate(options, 1))
    try:
        answer = await context.ask(question, offered, ANSWER_TIMEOUT_S)
    except TimeoutError:
        minutes = f"{ANSWER_TIMEOUT_S / 60:g} minutes"
        return Outcome(f"no answer within {minutes}; continue without one as well as you can, or stop", ok=False)
    return Outcome(next((option.label for option in offered if option.id == answer), answer))


class TodoItem(Struct, forbid_unknown_fields=True):
    """One item of the to-do list."""

    content: Annotated[str, Meta(min_length=1, description="what to do")]
    status: Annotated[
        Literal["pending", "in_progress", "completed", "cancelled"], Meta(description="the state of the item")
    ] = "pending"
    id: Annotated[str, Meta(description="an id that stays the same when the list changes; by default the position")] = (
        ""
    )


@tool(parallel=False)
async def write_todos(todos: list[TodoItem], context: ToolContext) -> Outcome:
    """Replace your to-do list, which the user can see. Always send the whole list: items you leave out are removed.

    Args:
        todos: all items, in the order in which you will work on them
    """
    items = [Todo(id=item.id or str(at), content=item.content, status=item.status) for at, item in enumerate(todos, 1)]
    ids = [item.id for item in items]
    duplicates = sorted({item_id for item_id in ids if ids.count(item_id) > 1})
    if duplicates:
        return Outcome(f"argument todos: duplicate id {', '.join(duplicates)}; nothing was changed", ok=False)
    context.set_todos(items)
    if not items:
        return Outcome("the list is empty")
    statuses = [item.status for item in items]
    counts = ", ".join(f"{statuses.count(s)} {s.replace('_', ' ')}" for s in dict.fromkeys(statuses))
    return Outcome(f"{len(items)} on the list: {counts}")


@tool
async def task(description: NonEmptyText, prompt: NonEmptyText, context: ToolContext, kind: str = "") -> Outcome:
    """Start another agent that works on a part of the task by itself and returns its last message.

    The other agent can't see this conversation. Put everything it needs to know into the prompt, and say what it should
    report back.

    Args:
        description: what the agent works on, in a few words, for the user
        prompt: the whole task
        kind: which kind of agent to start, if there are several
    """
    return await context.delegate(description, prompt, kind)


@tool(parallel=False)
async def compact_conversation(context: ToolContext) -> Outcome:
    """Replace the older part of this conversation with a summary to make room. Takes effect after this step."""
    count = await context.compact()
    return Outcome(f"after this step a summary replaces up to {count} messages")
