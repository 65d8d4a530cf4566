"""What the agents do differently, as data. All of it was seen in recordings; the neutral profile is what the protocol says.

names          where a call's tool name stands: in its first title, before `__` in its id, or in its input
silent_deny    a refused call is never spoken of again, and the turn goes on (Gemini)
deny_ends      a refused call ends the turn (OpenCode, Kilo)
second_prompt  a prompt while another one is served: `cancels` that one, waits and `queues`, waits and `joins` (both
               are answered at the very end), or is `refused`
replay         the history of a loaded session comes `before` the answer, or also `after` it
hidden         how the agent's own notes among the replayed prompts begin
mode_echo      how a text begins that only says the new mode
modes          the agent's modes on our scale (plan, ask, edits, auto, bypass); the others keep their own names
always_scope   how far "always" reaches: OpenCode and Gemini forget it, Kilo writes it into the user's configuration
untold_ends    an approved call's end is not told: it is over when the agent goes on (Cline)
loads          whether an earlier session can be loaded, where the agent's own word is not true
suffix         what the agent glues to a command that needs approval
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

from quarterdeck.harness.base import Object, list_of, object_of, text_of


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


class Profile(Struct, frozen=True, kw_only=True):
    """One agent's ways."""

    name: str
    #: what it calls itself in `agentInfo`, in lower case
    called: tuple[str, ...] = ()
    #: login methods that only it offers, for versions that do not say their name
    logins: tuple[str, ...] = ()
    names: Literal["title", "id", "input"] = "title"
    #: the tool behind a kind of call, where that is always the same one
    kind_names: Mapping[str, str] = field(default_factory=_nothing)
    silent_deny: bool = False
    deny_ends: bool = False
    second_prompt: Literal["cancels", "queues", "joins", "refused"] = "queues"
    replay: Literal["before", "after"] = "before"
    hidden: tuple[str, ...] = ()
    mode_echo: str = ""
    modes: Mapping[str, str] = field(default_factory=_nothing)
    always_scope: Literal["session", "repo", "user"] = "session"
    untold_ends: bool = False
    loads: bool | None = None
    suffix: str = ""


NEUTRAL = Profile(name="acp", modes=MappingProxyType({"plan": "plan", "default": "ask"}))

GEMINI = Profile(
    name="gemini",
    called=("gemini-cli", "gemini"),
    logins=("gemini-api-key", "oauth-personal"),
    names="id",
    silent_deny=True,
    second_prompt="cancels",
    replay="after",
    hidden=("<session_context>", "[Function Response: "),
    mode_echo="[MODE_UPDATE] ",
    modes=MappingProxyType({"plan": "plan", "default": "ask", "autoEdit": "edits", "yolo": "bypass"}),
)

OPENCODE = Profile(
    name="opencode",
    called=("opencode",),
    logins=("opencode-login",),
    kind_names=MappingProxyType({"execute": "bash"}),
    deny_ends=True,
    second_prompt="joins",
    modes=MappingProxyType({"plan": "plan"}),
)

KILO = Profile(
    name="kilo",
    called=("kilo",),
    logins=("kilo-login",),
    kind_names=MappingProxyType({"execute": "bash"}),
    deny_ends=True,
    second_prompt="queues",
    modes=MappingProxyType({"plan": "plan"}),
    always_scope="user",
)

CLINE = Profile(
    name="cline",
    called=("cline",),
    logins=("cline-oauth",),
    names="input",
    kind_names=MappingProxyType({"execute": "execute_command"}),
    second_prompt="refused",
    modes=MappingProxyType({"plan": "plan"}),
    untold_ends=True,
    loads=False,
    suffix="REQ_APP",
)

PROFILES = (GEMINI, OPENCODE, KILO, CLINE)
_BY_CALLED = {called: profile for profile in PROFILES for called in profile.called}
_BY_LOGIN = {login: profile for profile in PROFILES for login in profile.logins}


def recognised(initialized: Object) -> Profile | None:
    """The profile of the agent that answered `initialize` like this; None when it is none of ours."""
    called = text_of(object_of(initialized, "agentInfo"), "name").lower()
    if called:
        return _BY_CALLED.get(called)
    logins = [text_of(object_of(one), "id") for one in list_of(initialized, "authMethods")]
    return next((_BY_LOGIN[login] for login in logins if login in _BY_LOGIN), None)
