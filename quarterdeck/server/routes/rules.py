"""`/rules`: the rules that decide approvals."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.server.route import Call, Table

TABLE = Table()


class RuleShown(Struct, frozen=True):
    """A rule."""

    id: str
    text: str
    scope: str
    created_at: int


class Rules(Struct, frozen=True):
    """The rules of the user and of repositories. A session's own rules are in its log."""

    rules: tuple[RuleShown, ...]


@TABLE.add("GET", "/rules", "List the rules that decide approvals", answer=Rules)
async def rules(call: Call) -> Rules:
    stored = call.deck.services.rules.rules()
    return Rules(tuple(RuleShown(rule.id, rule.text, rule.scope, rule.created_at) for rule in stored))


@TABLE.add("DELETE", "/rules/{rule}", "Remove a rule", status=204, errors=(404, 409))
async def remove_rule(call: Call) -> None:
    call.deck.services.rules.remove(call.path["rule"])
