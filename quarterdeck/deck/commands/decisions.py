"""Commands that decide gates: approve, reject, respond; and the removal of a session's own rule."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.deck.approvals import rule_context
from quarterdeck.deck.commands.base import check_allowed
from quarterdeck.deck.rules import NoSuchRule, RuleStore, RulesUnreadable
from quarterdeck.harness.driver import Decision
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Decided, Done
from quarterdeck.kernel.gate import Gate, to_decide
from quarterdeck.policy import Rule, always, rule_for

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


async def approve(session: Session, command: cmd.Approve) -> Decided:
    """Approve a gate. With `always`, create a rule first."""
    check_allowed(session, command)
    gate = to_decide(session.state.gates, command.gate_id)
    if command.always is None:
        return await _commit_approval(session, command, gate, None)
    services = session.services
    rule = rule_for(gate, command.always, rule_context(session.state), services.clock.wall())
    is_new = rule.scope != "session" and await asyncio.to_thread(_store_rule, services.rules, rule) is rule
    try:
        check_allowed(session, command)
        result = await _commit_approval(session, command, gate, rule)
    except BaseException:
        if is_new:
            # The gate was decided meanwhile, or the log refused. Then the rule must not stay either.
            await asyncio.to_thread(services.rules.remove, rule.id)
        raise
    if rule.scope == "session":
        session.add_rule(rule)
    # The new rule may decide gates that are open in this and other sessions.
    services.supervisor.apply_rules()
    return result


def _store_rule(rules: RuleStore, rule: Rule) -> Rule:
    try:
        return rules.add(rule)
    except OSError as error:
        raise RulesUnreadable(rules.path, 0, f"can't be written: {error.strerror}") from error


async def _commit_approval(session: Session, command: cmd.Approve, gate: Gate, rule: Rule | None) -> Decided:
    decision = Decision(status="approved", always=rule is not None, resumes=command.auto_resume)
    closing = session.closing_events((gate,), decision, "user")
    bodies = closing if rule is None else [always(rule), *closing]
    result = await session.commit(command, bodies, Decided(gate.id, rule.text if rule is not None else ""))
    session.send_decision(gate, decision)
    _interrupt_unless_resumed(session, decision)
    return result


async def reject(session: Session, command: cmd.Reject) -> Decided:
    """Reject a gate. Without `auto_resume`, the turn ends."""
    check_allowed(session, command)
    gate = to_decide(session.state.gates, command.gate_id)
    resumes = command.auto_resume
    decision = Decision(status="rejected", reason=command.reason, stops=not resumes, resumes=resumes)
    result = await session.commit(command, session.closing_events((gate,), decision, "user"), Decided(gate.id))
    session.send_decision(gate, decision)
    _interrupt_unless_resumed(session, decision)
    return result


def _interrupt_unless_resumed(session: Session, decision: Decision) -> None:
    """Interrupt an agent that would continue its turn although the decision doesn't resume it."""
    if decision.resumes or session.connection is None or not session.state.turn.is_open:
        return
    if not session.connection.driver.capabilities.holds:
        session.interrupt_turn()


async def respond(session: Session, command: cmd.Respond) -> Decided:
    """Answer a question or a dialog."""
    check_allowed(session, command)
    gate = to_decide(session.state.gates, command.gate_id)
    decision = Decision(status="answered", answer=command.answer)
    result = await session.commit(command, session.closing_events((gate,), decision, "user"), Decided(gate.id))
    session.send_decision(gate, decision)
    return result


async def remove_rule(session: Session, command: cmd.RemoveRule) -> Done:
    """Remove a rule that was created for this session only."""
    await session.load()
    rule = next((rule for rule in session.rules if rule.id == command.rule_id), None)
    if rule is None:
        raise NoSuchRule(command.rule_id)
    result = await session.commit(command, [ev.RuleRemoved(rule=rule.text)], Done())
    session.remove_rule(rule)
    return result
