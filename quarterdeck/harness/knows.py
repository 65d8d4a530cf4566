"""What can be known of each agent, by the source that tells it, and why the rest cannot. docs/agents.md is made of it.

Everything here was seen in recordings of the real programs, or is missing in all of them. A source that says nothing about
a subject is not filled up with guesses: the state then shows what is known, and `signal` says how old that is.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Level: TypeAlias = Literal["yes", "partly", "no"]

#: subject → what the column answers
SUBJECTS = {
    "activity": "is it working, waiting or done, at every moment?",
    "approvals": "is a person asked for permission, and can we answer?",
    "questions": "does it ask a person something, and can we answer?",
    "texts": "what it says and thinks",
    "tools": "calls: arguments, output, end",
    "usage": "tokens",
    "cost": "money",
    "background": "shells and sub-agents that outlive the turn",
    "interrupts": "is a stopped turn seen as stopped?",
    "resume": "can an earlier session be gone on with, and is its history told?",
    "steer": "does it read a text in the middle of a turn?",
}


class Known(Struct, frozen=True, gc=False):
    """How well a subject is known. What is known only in part, or not at all, says why."""

    level: Level
    why: str = ""


class Source(Struct, frozen=True, kw_only=True):
    """One agent through one of its channels."""

    agent: str
    source: str
    #: the program and version that this was seen in
    seen: str
    knows: dict[str, Known]


def _yes(why: str = "") -> Known:
    return Known("yes", why)


def _partly(why: str) -> Known:
    return Known("partly", why)


def _no(why: str) -> Known:
    return Known("no", why)


_CLAUDE = "Claude Code 2.1.325"
_CODEX = "Codex 0.166.0"
_NO_COST = "no price is ever named"
_NO_QUESTIONS = (
    "the protocol's form for questions is used by none of the recorded agents; their questions are plain text"
)
_NO_STEER = "a second prompt is never read in the middle of a turn"
_ACP_ACTIVITY = "a turn is the time until the prompt is answered; retries are silent, and still work"

CLAUDE_STREAM = Source(
    agent="claude",
    source="stream",
    seen=f"{_CLAUDE}, stream-json and control protocol",
    knows={
        "activity": _yes("also the turns that finished background work starts by itself"),
        "approvals": _yes("can_use_tool; no timeout was seen. A hook may answer first, then the request is cancelled"),
        "questions": _yes("AskUserQuestion, only with the permission tool on stdio"),
        "texts": _yes("in pieces; texts cut off by an interrupt are told as far as they came"),
        "tools": _yes("unknown tools and bad input have no start of their own"),
        "usage": _yes("per message when it starts; the totals only in the result"),
        "cost": _yes("in the result"),
        "background": _yes("tasks started, updated, ended; a second result follows for their turn"),
        "interrupts": _yes("the result says aborted; no hook fires"),
        "resume": _yes("--resume; the history is in the transcript, not in the stream"),
        "steer": _partly("while a tool runs the text joins the turn; while text streams it becomes the next turn"),
    },
)
CLAUDE_HOOKS = Source(
    agent="claude",
    source="hooks",
    seen=f"{_CLAUDE}, HTTP hooks",
    knows={
        "activity": _partly("nothing fires on an interrupt, nor during retries: the status file fills the gap"),
        "approvals": _yes("PermissionRequest; it races with the terminal's dialog, whose answer closes no connection"),
        "questions": _yes("AskUserQuestion through PreToolUse or PermissionRequest"),
        "texts": _partly("the displayed text and the last message; no thoughts"),
        "tools": _yes("but no start and no end for unknown tools and bad input: only the batch"),
        "usage": _no("hooks carry no tokens"),
        "cost": _no("hooks carry no prices"),
        "background": _yes("SubagentStart and SubagentStop, and the list that Stop carries"),
        "interrupts": _no("neither Stop nor anything else fires; the status file tells"),
        "resume": _partly("SessionStart says resume; the history is in the transcript"),
        "steer": _partly("seen as a prompt within the turn; hooks cannot send one"),
    },
)
CLAUDE_FILE = Source(
    agent="claude",
    source="status file",
    seen=f"{_CLAUDE}, ~/.claude/sessions (an undocumented format)",
    knows={
        "activity": _partly("idle, busy, waiting: not what is being done. Left behind by kill -9"),
        "approvals": _partly("that a person is asked, not what; stays busy when only a hook asks"),
        "questions": _no("not told apart from approvals"),
        "texts": _no("only the state is in it; texts are in the transcript"),
        "tools": _no("only the state is in it"),
        "usage": _no("only the state is in it"),
        "cost": _no("only the state is in it"),
        "background": _no("only the state is in it"),
        "interrupts": _yes("idle within a tenth of a second"),
        "resume": _partly("names the session id to resume"),
        "steer": _no("a file that is only read"),
    },
)
CODEX_APP = Source(
    agent="codex",
    source="app-server",
    seen=f"{_CODEX}, JSON-RPC",
    knows={
        "activity": _yes("thread/status/changed is exact to milliseconds"),
        "approvals": _yes("several at once; sent again to whoever connects later; first answer wins"),
        "questions": _yes("only in plan mode does the agent have the tool"),
        "texts": _yes("a text aborted by steering or interrupt gets no end of its own"),
        "tools": _yes("except a command that the sandbox refused: it is not mentioned at all"),
        "usage": _yes("per thread, cumulative and for the last turn"),
        "cost": _no(_NO_COST),
        "background": _yes("commands that yielded, and the threads of sub-agents"),
        "interrupts": _yes("turn/completed says interrupted; the command itself goes on in the background"),
        "resume": _yes("thread/resume, with history; open approvals are asked again"),
        "steer": _yes("turn/steer: at once while text streams, after the tool while one runs"),
    },
)
CODEX_EXEC = Source(
    agent="codex",
    source="exec",
    seen=f"{_CODEX}, exec --json",
    knows={
        "activity": _yes("by items; an interrupt has no closing event, only the exit"),
        "approvals": _no("exec never asks: its approval policy is `never`"),
        "questions": _no("exec never asks"),
        "texts": _partly("whole messages only, no pieces"),
        "tools": _yes("commands and file changes, with exit codes; output when it is whole"),
        "usage": _partly("at the end of the turn, cumulative over the thread"),
        "cost": _no(_NO_COST),
        "background": _no("the process ends with the turn"),
        "interrupts": _partly("exit code 1 without a word"),
        "resume": _partly("exec resume; the history is not told"),
        "steer": _no("nothing is read after the start"),
    },
)
CODEX_OTLP = Source(
    agent="codex",
    source="OTLP",
    seen=f"{_CODEX}, OTLP logs",
    knows={
        "activity": _partly(
            "no record when it waits for a person or is interrupted: what is shown then is marked stale"
        ),
        "approvals": _no("only the decision is told, after it was made"),
        "questions": _no("nothing is told"),
        "texts": _no("prompts only, and only where logging them is switched on"),
        "tools": _partly("decisions and results; none of either after a cancel, results without decisions"),
        "usage": _yes("on the completion that carries tokens"),
        "cost": _no(_NO_COST),
        "background": _no("a yielded command looks like one that succeeded"),
        "interrupts": _no("no record of any kind"),
        "resume": _no("a resumed conversation starts like a new one"),
        "steer": _partly("seen as another prompt when it is read; cannot be sent"),
    },
)
CODEX_HOOKS = Source(
    agent="codex",
    source="hooks",
    seen=f"{_CODEX}, hooks (must be trusted by the user)",
    knows={
        "activity": _partly("a failed turn has no Stop; asynchronous hooks arrive out of order"),
        "approvals": _yes("PermissionRequest can allow and deny; it names no call"),
        "questions": _partly("no hook for them; guessed when nothing follows request_user_input for a second"),
        "texts": _partly("the last message"),
        "tools": _partly("no end for a refused call"),
        "usage": _partly("of each model request"),
        "cost": _no(_NO_COST),
        "background": _partly("SubagentStart and SubagentStop; shells are not told"),
        "interrupts": _yes("Interrupt"),
        "resume": _partly("SessionStart says resume, at the first turn"),
        "steer": _no("hooks cannot send"),
    },
)


def _acp(agent: str, seen: str, **differences: Known) -> Source:
    """What all ACP agents have in common, and what this one does differently."""
    common = {
        "activity": _yes(_ACP_ACTIVITY),
        "approvals": _yes("with the options that the agent offers"),
        "questions": _no(_NO_QUESTIONS),
        "texts": _yes("texts and thoughts in pieces"),
        "tools": _yes("arguments, output, result"),
        "usage": _yes("when the prompt is answered"),
        "cost": _no(_NO_COST),
        "background": _no("not part of the protocol: a sub-agent is a call like any other"),
        "interrupts": _yes("stop reason cancelled; after our cancel every end is one"),
        "resume": _yes("session/load with its history, which is told as history"),
        "steer": _no(_NO_STEER),
    }
    return Source(agent=agent, source="ACP", seen=seen, knows={**common, **differences})


ACP_GEMINI = _acp(
    "gemini",
    "Gemini CLI 0.61.0, --acp",
    approvals=_yes("a call that asks is first seen in the question; a refused one is never mentioned again"),
    tools=_partly("no arguments but the title, and no output of commands and reads; changes of files are shown"),
    usage=_yes("of the turn, by model; what was read from the cache is not told"),
    interrupts=_yes("a question that is open must be answered before the turn ends"),
    resume=_partly("session/load, but not within the minute in which the session was made: that destroys it"),
    steer=_no("a second prompt cancels the first"),
)
ACP_OPENCODE = _acp(
    "opencode",
    "OpenCode 1.18.33, acp",
    approvals=_yes("asked one after the other; a refusal ends the turn; also for sub-agents"),
    tools=_yes("output while it runs; exit codes are not failures"),
    usage=_partly("of the last model request of the turn only"),
    cost=_partly("the session's sum; 0 where the model has no price, which we show as unknown"),
    resume=_yes("session/resume without history, session/load with it"),
    steer=_no("a second prompt waits; both are answered at the very end"),
)
ACP_KILO = _acp(
    "kilo",
    "Kilo 7.7.7, acp",
    approvals=_yes("“always” is written into the user's configuration and holds for every later session"),
    tools=_yes("output while it runs; exit codes are not failures"),
    usage=_partly("of the last model request of the turn only"),
    cost=_partly("the session's sum; 0 where the model has no price, which we show as unknown"),
    resume=_yes("session/resume without history, session/load with it"),
    steer=_no("a second prompt waits for the first one's answer"),
)
ACP_CLINE = _acp(
    "cline 2",
    "Cline 2.18.0, --acp",
    activity=_partly("after errors and mistakes it waits for an answer that the protocol cannot carry, and looks busy"),
    approvals=_yes("a command that prints is asked about twice"),
    tools=_partly("an approved call's end is not told; command output comes as text"),
    usage=_no("no tokens are named"),
    interrupts=_yes("answered with end_turn; told as stopped because we know that we cancelled"),
    resume=_no("says that it can load sessions, and cannot"),
    steer=_no("a second prompt is refused"),
)
ACP_OTHER = _acp(
    "acp",
    "any other ACP agent, by the protocol",
    cost=_partly("if the agent sends it"),
    usage=_partly("if the agent sends it"),
    resume=_partly("if the agent offers it"),
)


def _pi(version: str, **differences: Known) -> Source:
    common = {
        "activity": _yes("agent_settled says when it is really over: after retries and compaction"),
        "approvals": _no("pi has no permissions; an extension may ask by a dialog"),
        "questions": _yes("dialogs of extensions: select, confirm, input, editor"),
        "texts": _yes("in pieces; a retry streams the text again, and the first one is taken back"),
        "tools": _yes("output while it runs, ends in the order in which they finish"),
        "usage": _yes("per message"),
        "cost": _yes("per message"),
        "background": _no("nothing outlives the run; the user's own shell command is told apart"),
        "interrupts": _yes("settled as aborted; an open dialog must be answered first"),
        "resume": _yes("its session files; the history must be asked for"),
        "steer": _yes("steer: read after the tools of the running step"),
    }
    return Source(
        agent="pi", source=f"RPC {version}", seen=f"pi {version}, --mode rpc", knows={**common, **differences}
    )


PI_0_73 = _pi(
    "0.73",
    activity=_partly("no agent_settled: whether a retry or a compaction follows is known only when it does"),
    texts=_yes("every piece repeats the whole message so far"),
    interrupts=_partly("only the stop reason of the last message tells; in a tool it says error"),
)
PI_0_87 = _pi(
    "0.87", interrupts=_partly("agent_settled does not say whether it was aborted; the stop reason mostly does")
)
PI_1_5 = _pi("1.5")

CLINE_1 = Source(
    agent="cline 1",
    source="say/ask",
    seen="Cline 1.0.10, state and partial streams",
    knows={
        "activity": _yes("from both streams together: neither has every question"),
        "approvals": _yes("tools, commands, browser, MCP"),
        "questions": _yes("followup and plan_mode_respond"),
        "texts": _yes("each piece repeats the whole text so far"),
        "tools": _yes("output of commands as pieces; results of reads are not told"),
        "usage": _yes("on the request's own message, updated in place"),
        "cost": _yes("with the usage"),
        "background": _no("not part of the vocabulary"),
        "interrupts": _yes("cancelReason, then the offer to resume"),
        "resume": _yes("by task id; the messages come again"),
        "steer": _partly("a text is the answer to whatever is asked"),
    },
)
CLINE_2_JSON = Source(
    agent="cline 2",
    source="say/ask",
    seen="Cline 2.18.0, --json",
    knows={
        "activity": _partly("each message once, when it is whole: nothing while one grows"),
        "approvals": _partly("seen, but nothing can be answered: without -y it hangs for ever"),
        "questions": _partly("seen, but nothing can be answered"),
        "texts": _partly("whole messages only"),
        "tools": _partly("that they were called; later changes of a message are never printed"),
        "usage": _no("it comes with a later change of the message, which is never printed"),
        "cost": _no("comes with the usage"),
        "background": _no("not part of the vocabulary"),
        "interrupts": _partly("a signal ends the process with code 0"),
        "resume": _yes("-T ID prints the whole history first"),
        "steer": _no("stdin is not read"),
    },
)
OLD_KILO = Source(
    agent="kilo (before 7)",
    source="say/ask",
    seen="Kilo CLI 0.x, --json-io (read in its source; it could not be run)",
    knows={
        "activity": _yes("000's own vocabulary"),
        "approvals": _yes("tools, commands, browser, MCP"),
        "questions": _yes("followup; one that stays partial counts as asked after a while"),
        "texts": _yes("each piece repeats the whole text so far"),
        "tools": _yes("output of commands by execution id"),
        "usage": _yes("on the request's own message"),
        "cost": _yes("with the usage"),
        "background": _no("not part of the vocabulary"),
        "interrupts": _yes("the offer to resume follows"),
        "resume": _yes("by session id"),
        "steer": _partly("a text is the answer to whatever is asked"),
    },
)
_ENGINE = {
    "activity": _yes("the engine says it itself; nothing is guessed or debounced"),
    "approvals": _yes("the call is held until somebody decides"),
    "questions": _yes("the tool ask_user"),
    "texts": _yes("in pieces, reasoning too where the model shows it"),
    "tools": _yes("arguments, live output, end, and how long each took"),
    "usage": _yes("with every reply of the model"),
    "cost": _partly("where config.toml names the prices of the model"),
    "background": _yes("calls that run on through an interrupt; its shell leaves nothing behind"),
    "interrupts": _yes("agent_abort, with what was cut off"),
    "resume": _yes("from our own log, which is its only memory"),
    "steer": _yes("merged before the next request of the turn"),
}
BUILTIN = Source(agent="builtin", source="engine", seen="this release, its own events", knows=_ENGINE)
DEMO = Source(
    agent="demo",
    source="engine",
    seen="this release, with a scripted model",
    knows=_ENGINE | {"cost": _yes("nothing")},
)

SOURCES = (
    CLAUDE_STREAM,
    CLAUDE_HOOKS,
    CLAUDE_FILE,
    CODEX_APP,
    CODEX_EXEC,
    CODEX_OTLP,
    CODEX_HOOKS,
    ACP_GEMINI,
    ACP_OPENCODE,
    ACP_KILO,
    ACP_CLINE,
    ACP_OTHER,
    PI_0_73,
    PI_0_87,
    PI_1_5,
    CLINE_1,
    CLINE_2_JSON,
    OLD_KILO,
    BUILTIN,
    DEMO,
)
