"""`qd run`: a new session, followed in this terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from quarterdeck.cli.exits import Exit, echo_json
from quarterdeck.cli.home_check import own_home
from quarterdeck.cli.wire import Unreachable, Wire, connected
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home

#: What processes of ours tell each other; an agent must not have it from us.
_OURS = ("QUARTERDECK_NONCE", "QUARTERDECK_LIFELINE")
_FLAGS = "quarterdeck.run.flags"
#: As the contract has them; a test compares them with those of the deck, which is not imported for a word.
MODES = ("plan", "ask", "edits", "auto", "bypass")
_MEDIA = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}


class NoSuchFile(QuarterdeckError):
    """An image, or the folder to work in."""

    code = "no_such_file"


class NotText(QuarterdeckError):
    """Bytes that are not UTF-8, where a text belongs: an agent could not be told them."""

    code = "not_text"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not UTF-8", "Convert it first, for example with `iconv -f latin1 -t utf-8`.")


class NoSuchProfile(QuarterdeckError):
    """The configuration has no profile of this name."""

    code = "no_such_profile"

    def __init__(self, name: str, known: list[str], place: Home) -> None:
        there = f"The profiles are: {', '.join(known)}." if known else f"Add [profile.{name}] to {place.config}."
        super().__init__(f"there is no profile {name!r}", there)


class NoSuchAgent(QuarterdeckError):
    """Neither an agent nor clearly a prompt."""

    code = "unknown_agent"

    def __init__(self, name: str, known: list[str]) -> None:
        hint = f"The agents are: {', '.join(known)}. For a prompt of one word name an agent before it."
        super().__init__(f"no agent is called {name!r}", hint)


class _Command(click.Command):
    """What follows `--` belongs to the agent, whatever came before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_FLAGS] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- NATIVE FLAGS]"]


@click.command(cls=_Command)
@click.argument("agent", required=False)
@click.argument("prompt", required=False)
@click.option("-C", "--cwd", "folder", metavar="DIR", default=".", help="The folder to work in.  [default: this one]")
@click.option("-m", "--model", default="", help="The model, in the agent's own words.")
@click.option("-n", "--name", default="", help="A name for the list.")
@click.option("-i", "--image", "images", multiple=True, type=click.Path(path_type=Path), help="An image to look at.")
@click.option("--mode", type=click.Choice(MODES), help="How much it may do unasked.")
@click.option("--record", is_flag=True, help="Keep everything that the agent says, for `qd replay`.")
@click.option("-d", "--detach", is_flag=True, help="Print the session's id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print one event a line.")
@click.pass_context
def run(
    ctx: click.Context,
    agent: str | None,
    prompt: str | None,
    folder: str,
    images: tuple[Path, ...],
    detach: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Start a session and follow it in the terminal.

    AGENT is `builtin`, `demo` or another agent that can be started here, or a @profile; without one, the first that is
    logged in. PROMPT is what it shall do; `-` reads standard input. A line that you type answers what is asked, or is a
    message. Ctrl-C stops the turn; a second one leaves, and the session goes on.
    """
    place = own_home()
    body: dict[str, Any] = {name: value for name, value in given.items() if value}
    body |= {
        "cwd": _folder(folder),
        "images": [_image(path) for path in images],
        "env": _environment(),
        "client_id": uuid4().hex,
    }
    if ctx.meta[_FLAGS]:
        body["options"] = {"arguments": ctx.meta[_FLAGS]}
    asking = Asking(agent, prompt)
    _check_texts({"AGENT": agent, "the prompt": prompt, "-C": folder, "a flag": "".join(ctx.meta[_FLAGS]), **given})
    # from here on there is a server, which nobody wants to be started for an order that cannot be
    wire = connected(place)
    body |= Wanted(wire.get("/agents")["agents"], place, asking).settled(body)
    try:
        wire, view = _created(place, wire, body)
    except QuarterdeckError:
        asking.give_back()
        raise
    if detach:
        click.echo(view["id"])
        return
    ctx.exit(_followed(place, wire, view, as_json))


class Asking:
    """The words of the order. Standard input is read at once; a person is asked when it is known that it is needed."""

    def __init__(self, agent: str | None, prompt: str | None) -> None:
        self.agent = agent
        self.prompt = prompt
        self._typed = ""
        if prompt == "-" or (prompt is None and agent == "-"):
            self.agent = None if prompt is None else agent
            self.prompt = _decoded(sys.stdin.buffer.read(), "the prompt")

    def typed(self) -> str:
        """From the person, if there is one."""
        if not sys.stdin.isatty():
            raise click.UsageError("a prompt is missing; `-` reads it from standard input.")
        click.echo("What shall it do? ", nl=False, err=True)
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            click.echo(err=True)
        self._typed = _decoded(line, "the prompt")
        return self._typed

    def give_back(self) -> None:
        """What a person typed and no session has."""
        if self._typed.strip():
            click.echo(f"not sent: {self._typed.strip()}", err=True)


class Wanted:
    """Who is to do what, from what was typed."""

    def __init__(self, agents: list[dict[str, Any]], place: Home, asking: Asking) -> None:
        self._place = place
        self._asking = asking
        self._agents = {one["name"]: one for one in agents}
        self._agent, self._prompt = self._told_apart(asking.agent, asking.prompt)

    def _told_apart(self, agent: str | None, prompt: str | None) -> tuple[str, str | None]:
        """One argument alone may be either; a word that looks like an agent's name is never sent as a prompt."""
        if agent is None:
            return "", prompt
        if agent in self._agents or agent.startswith(("@", "acp:")):
            return agent, prompt
        if prompt is None and len(agent.split()) != 1:
            return "", agent
        raise NoSuchAgent(agent, [name for name, one in self._agents.items() if one["driven"]])

    def settled(self, given: dict[str, Any]) -> dict[str, Any]:
        """Agent, prompt, model and mode as the server takes them; what was given on the command line wins."""
        found: dict[str, Any] = {}
        preamble = ""
        agent = self._agent
        if agent.startswith("@"):
            profile = self._profile(agent[1:])
            agent, preamble = profile.agent, profile.preamble
            found = {"model": profile.model, "mode": profile.mode or ""}
        agent = agent or self._default()
        prompt = self._text(agent)
        found |= {"agent": agent, "prompt": f"{preamble}\n\n{prompt}" if preamble else prompt}
        return {name: value for name, value in found.items() if name not in given}

    def _profile(self, name: str) -> Any:
        from quarterdeck.config import read_config

        profiles = read_config(self._place.config, os.environ).profiles
        if name not in profiles:
            raise NoSuchProfile(name, sorted(profiles), self._place)
        return profiles[name]

    def _default(self) -> str:
        """The first that is logged in; the demo is always there, and is said when it is taken for want of another."""
        ready = [name for name, one in self._agents.items() if one["driven"] and _is_ready(one)]
        found = next((name for name in ready if name != "demo"), "demo")
        if found == "demo":
            click.echo("(no agent is logged in: this is the demo, with a scripted model)", err=True)
        return found

    def _text(self, agent: str) -> str:
        if self._prompt is not None:
            text = self._prompt
        else:
            text = self._agents.get(agent, {}).get("prompt") or self._asking.typed()
        if not text.strip():
            raise click.UsageError("the prompt is empty.")
        return text


def _is_ready(agent: dict[str, Any]) -> bool:
    """The server knows its own environment, and the agent gets ours, which may hold a key."""
    if agent["login"] != "missing":
        return agent["login"] == "ok"
    from quarterdeck.harness.registry import harness

    return harness(agent["name"]).standing(os.environ).login == "ok"


def _decoded(data: bytes, what: str) -> str:
    """UTF-8, whatever the locale says; NotText."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotText(f"{what}, byte {error.start + 1} (0x{data[error.start]:02x}),") from None


def _check_texts(given: dict[str, Any]) -> None:
    """An argument may have bytes that no text has."""
    for name, value in given.items():
        if isinstance(value, str) and not _is_text(value):
            raise NotText(name if " " in name or not name.islower() else f"--{name}")


def _folder(path: str) -> str:
    """As seen from here: the server stands elsewhere."""
    if not path:
        raise click.BadParameter("the name of the folder is empty.", param_hint="-C")
    found = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(found):
        raise NoSuchFile(f"there is no folder {found}", "Create it, or name another one with -C.")
    return found


def _image(path: Path) -> dict[str, str]:
    import base64

    media = _MEDIA.get(path.suffix.lower())
    if media is None:
        raise click.UsageError(f"{path} is no image that agents read ({', '.join(sorted(set(_MEDIA)))}).")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NoSuchFile(f"{path} cannot be read: {error.strerror}", "Name a file that you may read.") from None
    return {"media_type": media, "data": base64.b64encode(data).decode("ascii")}


def _environment() -> dict[str, str]:
    """The caller's own, not that of whoever started the server. What JSON cannot say stays behind."""
    return {name: value for name, value in os.environ.items() if name not in _OURS and _is_text(name + value)}


def _is_text(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _created(place: Home, wire: Wire, body: dict[str, Any]) -> tuple[Wire, Any]:
    """The new session. Its key makes sure that a request which is repeated after a cut makes one session, not two."""
    try:
        return wire, wire.post("/sessions", body)
    except Unreachable:
        wire = connected(place)
        return wire, wire.post("/sessions", body)


def _followed(place: Home, wire: Wire, view: Any, as_json: bool) -> Exit:
    from quarterdeck.cli.terminal.follow import Follower
    from quarterdeck.cli.terminal.stream import Stream

    stream = Stream(place, wire, view["id"])
    follower = Follower(stream, wire, view["id"], echo_json if as_json else None)
    with follower.caught_signals():
        if not as_json:
            follower.paper.note(f"— {view['agent']} in {view['cwd']} (session {view['id']})", dim=True)
        return follower.run()
