"""Describe what each ACP agent does differently, as data.

Every quirk here was seen in a recording of the real agent. `NEUTRAL` is what the protocol itself says, and serves every
agent that isn't recognised. To support an agent with a quirk, add a `Profile` to `PROFILES`; only a quirk that no
field describes yet needs a new field and one place in the translator that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

from quarterdeck.harness.base import Object, list_of, object_of, text_of


def _empty_mapping() -> Mapping[str, str]:
    return MappingProxyType({})


class Profile(Struct, frozen=True, kw_only=True):
    """How one agent speaks ACP."""

    name: str

    # --- recognising the agent

    #: Names the agent gives itself in `agentInfo`, in lower case.
    agent_names: tuple[str, ...] = ()
    #: Login methods that only this agent offers, for versions that don't send `agentInfo`.
    logins: tuple[str, ...] = ()

    # --- tool calls

    #: Where a call carries the name of its tool: in its first title, before `__` in its id, or in its input.
    tool_name_in: Literal["title", "id", "input"] = "title"
    #: Tool name by kind of call, for kinds that always mean the same tool.
    kind_names: Mapping[str, str] = field(default_factory=_empty_mapping)
    #: Suffix that the agent appends to a command that needs approval.
    suffix: str = ""
    #: The agent never reports the end of an approved call. The call is over when the agent continues (Cline).
    unreported_ends: bool = False

    # --- approvals

    #: The agent never mentions a refused call again, and the turn continues (Gemini).
    silent_deny: bool = False
    #: A refused call ends the turn (OpenCode, Kilo).
    deny_ends: bool = False
    #: How long an "always" decision lasts: OpenCode and Gemini forget it with the session, Kilo writes it into the user's
    #: configuration.
    always_scope: Literal["session", "repo", "user"] = "session"

    # --- prompts and sessions

    #: What a prompt does while another one is being served: it `cancels` that one, waits and `queues`, waits and `joins`
    #: (both prompts are answered at the very end), or is `refused`.
    second_prompt: Literal["cancels", "queues", "joins", "refused"] = "queues"
    #: When the history of a loaded session arrives: `before` the answer to the load request, or also `after` it.
    replay: Literal["before", "after"] = "before"
    #: Prefixes of the agent's own notes among the replayed prompts.
    hidden: tuple[str, ...] = ()
    #: Whether an earlier session can be loaded, for agents whose advertised capability isn't true.
    loads: bool | None = None

    # --- modes

    #: Prefix of a text that only announces the new mode.
    mode_echo: str = ""
    #: The agent's modes on our scale (plan, ask, edits, auto, bypass). Modes that aren't listed keep their own names.
    modes: Mapping[str, str] = field(default_factory=_empty_mapping)


NEUTRAL = Profile(name="acp", modes=MappingProxyType({"plan": "plan", "default": "ask"}))

GEMINI = Profile(
    name="gemini",
    agent_names=("gemini-cli", "gemini"),
    logins=("gemini-api-key", "oauth-personal"),
    tool_name_in="id",
    silent_deny=True,
    second_prompt="cancels",
    replay="after",
    hidden=("<session_context>", "[Function Response: "),
    mode_echo="[MODE_UPDATE] ",
    modes=MappingProxyType({"plan": "plan", "default": "ask", "autoEdit": "edits", "yolo": "bypass"}),
)

OPENCODE = Profile(
    name="opencode",
    agent_names=("opencode",),
    logins=("opencode-login",),
    kind_names=MappingProxyType({"execute": "bash"}),
    deny_ends=True,
    second_prompt="joins",
    modes=MappingProxyType({"plan": "plan"}),
)

KILO = Profile(
    name="kilo",
    agent_names=("kilo",),
    logins=("kilo-login",),
    kind_names=MappingProxyType({"execute": "bash"}),
    deny_ends=True,
    second_prompt="queues",
    modes=MappingProxyType({"plan": "plan"}),
    always_scope="user",
)

CLINE = Profile(
    name="cline",
    agent_names=("cline",),
    logins=("cline-oauth",),
    tool_name_in="input",
    kind_names=MappingProxyType({"execute": "execute_command"}),
    second_prompt="refused",
    modes=MappingProxyType({"plan": "plan"}),
    unreported_ends=True,
    loads=False,
    suffix="REQ_APP",
)

PROFILES = (GEMINI, OPENCODE, KILO, CLINE)
_BY_AGENT_NAME = {name: profile for profile in PROFILES for name in profile.agent_names}
_BY_LOGIN = {login: profile for profile in PROFILES for login in profile.logins}


def recognise(initialized: Object) -> Profile | None:
    """Return the profile of the agent that answered `initialize` like this, or None if it is unknown."""
    agent_name = text_of(object_of(initialized, "agentInfo"), "name").lower()
    if agent_name:
        return _BY_AGENT_NAME.get(agent_name)
    logins = [text_of(object_of(method), "id") for method in list_of(initialized, "authMethods")]
    return next((_BY_LOGIN[login] for login in logins if login in _BY_LOGIN), None)
