"""`qd run`: start a session and follow it in this terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import click

from quarterdeck.cli.connect import connect
from quarterdeck.cli.exits import Exit, echo_json
from quarterdeck.cli.home_check import check_home
from quarterdeck.client.errors import is_server_away
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home

if TYPE_CHECKING:
    from quarterdeck.client.json_api import JsonApi

#: Variables that our processes pass to each other. An agent must not inherit them from this command.
_OWN_VARIABLES = ("QUARTERDECK_NONCE", "QUARTERDECK_LIFELINE")
_AGENT_FLAGS = "quarterdeck.run.flags"
#: As in the contract. A test compares them with the deck's, which isn't imported here because that is slow.
MODES = ("plan", "ask", "edits", "auto", "bypass")
_MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}


class NoSuchFile(QuarterdeckError):
    """An image or the working folder doesn't exist."""

    code = "no_such_file"


class NotText(QuarterdeckError):
    """A text contains bytes that aren't UTF-8."""

    code = "not_text"

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject} isn't UTF-8", "Convert it first, for example with `iconv -f latin1 -t utf-8`.")


class NoSuchProfile(QuarterdeckError):
    """The configuration has no profile of this name."""

    code = "no_such_profile"

    def __init__(self, name: str, known: list[str], home: Home) -> None:
        hint = f"Name one of: {', '.join(known)}." if known else f"Add [profile.{name}] to {home.config}."
        super().__init__(f"there is no profile {name!r}", hint)


class NoSuchAgent(QuarterdeckError):
    """A single word that is neither an agent nor clearly a prompt."""

    code = "unknown_agent"

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"there is no agent {name!r}",
            f"Name one of: {', '.join(known)}. If {name!r} is your prompt, name an agent before it.",
        )


class _RunCommand(click.Command):
    """Takes everything after `--` as flags for the agent."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_AGENT_FLAGS] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- NATIVE FLAGS]"]


@click.command(cls=_RunCommand)
@click.argument("agent", required=False)
@click.argument("prompt", required=False)
@click.option("-C", "--cwd", "folder", metavar="DIR", default=".", help="Folder to work in.  [default: this one]")
@click.option("-m", "--model", default="", help="Model, as the agent names it.")
@click.option("-n", "--name", default="", help="Name of the session in lists.")
@click.option("-i", "--image", "images", multiple=True, type=click.Path(path_type=Path), help="Image for the prompt.")
@click.option("--mode", type=click.Choice(MODES), help="What the agent may do without asking.")
@click.option("--record", is_flag=True, help="Record everything that the agent sends, for `qd replay`.")
@click.option("-d", "--detach", is_flag=True, help="Print the session's id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print one event per line.")
@click.pass_context
def run(
    ctx: click.Context,
    agent: str | None,
    prompt: str | None,
    folder: str,
    images: tuple[Path, ...],
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a session and follow it in the terminal.

    AGENT is `builtin`, `demo`, another agent that can be started here, or a @profile. Without AGENT, the first agent that
    is logged in is used. PROMPT is the task; `-` reads it from standard input.

    While the session runs, type a line to answer the open question, or to send the agent a message if no question is
    open. Press Ctrl-C to stop the turn. Press it again to leave; the session keeps running.
    """
    home = check_home()
    flags: list[str] = ctx.meta[_AGENT_FLAGS]
    request: dict[str, Any] = {name: value for name, value in options.items() if value}
    request |= {
        "cwd": _resolve_folder(folder),
        "images": [_read_image(path) for path in images],
        "env": _environment(),
        "options": {"arguments": flags},
        "client_id": uuid4().hex,
    }
    task = TaskInput(agent, prompt)
    _check_texts({"AGENT": agent, "the prompt": prompt, "-C": folder, "a flag": "".join(flags), **options})
    # Everything that can be checked without a server is checked above, so that a mistake doesn't start one.
    agents = _on_server(home, lambda api: api.get("/agents"))["agents"]
    request = TaskChoice([_decode_agent(agent) for agent in agents], home, task).choose(request) | request
    try:
        # The client_id keeps a repetition from creating two sessions.
        session_id: str = _on_server(home, lambda api: api.post("/sessions", request))["id"]
    except QuarterdeckError:
        task.print_unsent()
        raise
    if detach:
        click.echo(session_id)
        return
    ctx.exit(_follow(home, session_id, as_json))


# --- agent and prompt


class KnownAgent(NamedTuple):
    """An agent that the server knows (`GET /agents`)."""

    name: str
    #: Whether sessions with this agent can be started from here.
    driven: bool
    #: ok, missing or unknown.
    login: str
    #: The prompt that a session starts with if the user gives none.
    prompt: str


def _decode_agent(agent: dict[str, Any]) -> KnownAgent:
    return KnownAgent(agent["name"], agent["driven"], agent.get("login", "unknown"), agent.get("prompt", ""))


class TaskInput:
    """Agent and prompt as given on the command line, on standard input or at a prompt of ours."""

    def __init__(self, agent: str | None, prompt: str | None) -> None:
        self.agent = agent
        self.prompt = prompt
        self._typed = ""
        if prompt == "-" or (prompt is None and agent == "-"):
            self.agent = None if prompt is None else agent
            self.prompt = _decode(sys.stdin.buffer.read(), "the prompt")

    def ask(self) -> str:
        """Ask the user for the prompt."""
        if not sys.stdin.isatty():
            raise click.UsageError("the prompt is missing. `-` reads it from standard input.")
        click.echo("What should the agent do? ", nl=False, err=True)
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            click.echo(err=True)
        self._typed = _decode(line, "the prompt")
        return self._typed

    def print_unsent(self) -> None:
        """Print a prompt that the user typed and that reached no session, so that it isn't lost."""
        if self._typed.strip():
            click.echo(f"not sent: {self._typed.strip()}", err=True)


class TaskChoice:
    """Choose agent, prompt, model and mode from what the user gave."""

    def __init__(self, agents: list[KnownAgent], home: Home, task: TaskInput) -> None:
        self._home = home
        self._task = task
        self._agents = {agent.name: agent for agent in agents}
        self._agent, self._prompt = self._split(task.agent, task.prompt)

    def _split(self, agent: str | None, prompt: str | None) -> tuple[str, str | None]:
        """Decide whether a single argument is the agent or the prompt.

        A single word is never sent as a prompt: it is more likely a mistyped agent.
        """
        if agent is None:
            return "", prompt
        if agent in self._agents or agent.startswith(("@", "acp:")):
            return agent, prompt
        if prompt is None and len(agent.split()) != 1:
            return "", agent
        raise NoSuchAgent(agent, [known.name for known in self._agents.values() if known.driven])

    def choose(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the request that the user's options don't set."""
        chosen: dict[str, Any] = {}
        preamble = ""
        agent = self._agent
        if agent.startswith("@"):
            profile = self._load_profile(agent[1:])
            agent, preamble = profile.agent, profile.preamble
            chosen = {"model": profile.model, "mode": profile.mode or ""}
        agent = agent or self._default_agent()
        prompt = self._choose_prompt(agent)
        chosen |= {"agent": agent, "prompt": f"{preamble}\n\n{prompt}" if preamble else prompt}
        return {name: value for name, value in chosen.items() if name not in request}

    def _load_profile(self, name: str) -> Any:
        from quarterdeck.config import read_config

        profiles = read_config(self._home.config, os.environ).profiles
        if name not in profiles:
            raise NoSuchProfile(name, sorted(profiles), self._home)
        return profiles[name]

    def _default_agent(self) -> str:
        """Return the first agent that is logged in, or else the demo, with a note."""
        ready = [agent.name for agent in self._agents.values() if agent.driven and _is_ready(agent)]
        default = next((name for name in ready if name != "demo"), "demo")
        if default == "demo":
            click.echo("(no agent is logged in; starting the demo with a scripted model)", err=True)
        return default

    def _choose_prompt(self, agent: str) -> str:
        if self._prompt is not None:
            text = self._prompt
        else:
            known = self._agents.get(agent)
            text = (known.prompt if known is not None else "") or self._task.ask()
        if not text.strip():
            raise click.UsageError("the prompt is empty.")
        return text


def _is_ready(agent: KnownAgent) -> bool:
    # The server checked its own environment. The agent will get this command's, which may have a key.
    if agent.login != "missing":
        return agent.login == "ok"
    from quarterdeck.harness.registry import harness

    return harness(agent.name).availability(os.environ).login == "ok"


# --- checks of what the user gave


def _decode(data: bytes, subject: str) -> str:
    """Decode UTF-8, whatever the locale says.

    Raises:
        NotText: the data isn't UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotText(f"{subject}, byte {error.start + 1} (0x{data[error.start]:02x}),") from None


def _check_texts(arguments: dict[str, Any]) -> None:
    """Reject arguments with bytes that aren't UTF-8. Python passes them on as surrogates."""
    for name, value in arguments.items():
        if isinstance(value, str) and not _is_text(value):
            raise NotText(name if " " in name or not name.islower() else f"--{name}")


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _resolve_folder(path: str) -> str:
    """Return the absolute path. The server has another current folder."""
    if not path:
        raise click.BadParameter("the name of the folder is empty.", param_hint="-C")
    folder = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(folder):
        raise NoSuchFile(f"there is no folder {folder}", "Create it, or name another one with -C.")
    return folder


def _read_image(path: Path) -> dict[str, str]:
    import base64

    media_type = _MEDIA_TYPES.get(path.suffix.lower())
    if media_type is None:
        known = ", ".join(sorted(_MEDIA_TYPES))
        raise click.UsageError(f"{path} isn't an image that agents can read ({known}).")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NoSuchFile(f"{path} can't be read: {error.strerror}", "Name a file that you may read.") from None
    return {"media_type": media_type, "data": base64.b64encode(data).decode("ascii")}


def _environment() -> dict[str, str]:
    """Return this command's environment for the agent, without what JSON can't carry."""
    return {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES and _is_text(name + value)}


# --- the session


def _on_server(home: Home, send: Callable[[JsonApi], Any]) -> Any:
    """Send a request to the server, and once more to a new one if the server goes away meanwhile."""
    try:
        return send(connect(home).api)
    except QuarterdeckError as error:
        if not is_server_away(error):
            raise
    return send(connect(home).api)


def _follow(home: Home, session_id: str, as_json: bool) -> Exit:
    from quarterdeck.cli.terminal.follow import Follower
    from quarterdeck.cli.terminal.stream import Stream

    session = connect(home).client.session(session_id)
    follower = Follower(Stream(home, session), session, echo_json if as_json else None)
    with follower.caught_signals():
        view = session.show()
        if not as_json:
            follower.output.note(f"— {view.agent} in {view.cwd} (session {view.id})", dim=True)
        return follower.run()
