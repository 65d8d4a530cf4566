"""A repository of our own beside the user's: it has snapshots of the working tree, and nothing of the user's is touched.

A snapshot is a tree of everything that git would track: tracked files as they are on the disk, and untracked ones unless
they are ignored. Its objects, its index and its refs are in the home of the deck; what the user's repository has already is
read from there and not stored again. Nested repositories are one entry each, as git has them, or none if they are not
tracked. Methods block: they are for threads, and for one at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from quarterdeck.deck.git.diff import ChangedFile, changed_files
from quarterdeck.deck.git.run_git import Git, GitFailed, ignored_everywhere

#: What is larger is not stored: a stand-in says its size and when it was written, and it is shown as binary.
BIG = 8 * 1024 * 1024
PATCH_LIMIT = 1024 * 1024
_REFS = "refs/quarterdeck"
#: The file in a shadow that says whose it is.
_ROOT = "root"
#: How often a list of files is split to find the ones that git cannot read.
_TRIES = 40
_SETTINGS = {
    "core.quotePath": "false",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.autocrlf": "false",
    "core.compression": "1",
    "core.logAllRefUpdates": "false",
    "gc.auto": "1000",
    "gc.autoDetach": "false",
}


class Mark(NamedTuple):
    """A snapshot that is kept, and when it was taken (milliseconds)."""

    id: str
    at: int


class Theirs(NamedTuple):
    """Where the parts of the user's repository are."""

    staged: str
    objects: str
    excluded: str
    config: str


def theirs(root: str) -> Theirs:
    """Of a worktree or a submodule `.git` is a file that says where the folder is."""
    folder = os.path.join(root, ".git")
    if os.path.isfile(folder):
        said = Path(folder).read_text("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
        folder = os.path.join(root, said)
    common = folder
    with contextlib.suppress(OSError):
        common = os.path.join(folder, Path(folder, "commondir").read_text("utf-8", "surrogateescape").strip())
    inside = [os.path.join(common, *parts) for parts in (("objects",), ("info", "exclude"), ("config",))]
    return Theirs(os.path.join(folder, "index"), *inside)


class Shadow:
    """Of the repository at `root`, kept in `place`. `hidden` is a folder that is never looked into: the deck's own."""

    def __init__(self, git: Git, place: Path, root: str, hidden: Path) -> None:
        self._git = git
        self._place = place
        self._root = root
        self._hidden = hidden
        self._index = place / "index"
        self._ignored: str | None = None

    # --- snapshots

    def snapshot(self) -> str:
        """The tree of what is on the disk now."""
        found = theirs(self._root)
        is_new = self._prepare(found)
        settings = self._settings(found)
        try:
            listed = self._listed(settings) + (self._in_conflict(settings) if is_new else [])
        except GitFailed:  # an index that this git cannot read; without one every file is read, which only takes longer
            self._index.unlink(missing_ok=True)
            listed = self._listed(settings)
        small, big = self._sorted(listed)
        self._update(small, settings, [_TRIES])
        return self._tree(big, settings)

    def _prepare(self, found: Theirs) -> bool:
        """Made if need be; whether it was. The first index is a copy of the user's, so that only what changed since must be
        read; git trusts an entry only if it is older than the index, so the copy has the time of the original."""
        is_new = not (self._place / "HEAD").exists()
        if is_new:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place.mkdir(mode=0o700, parents=True)
            (self._place / _ROOT).write_bytes(os.fsencode(self._root))
            kind = f"--object-format={self._format(found)}"
            self._git.run("init", "-q", "--bare", "--template=", kind, str(self._place), settings={})
            with contextlib.suppress(OSError):
                shutil.copy2(found.staged, self._index)
        for left in ("index.lock", "index.big", "index.big.lock"):  # of a git that was killed: nobody else works here
            (self._place / left).unlink(missing_ok=True)
        (self._place / "info").mkdir(exist_ok=True)
        (self._place / "info" / "exclude").write_bytes(self._excluded(found))
        return is_new

    def _format(self, found: Theirs) -> str:
        with contextlib.suppress(GitFailed):
            asked = ("config", "-f", found.config, "--get", "extensions.objectFormat")
            return self._git.run(*asked, settings={}).decode().strip()
        return "sha1"

    def _excluded(self, found: Theirs) -> bytes:
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            lines.append(Path(found.excluded).read_bytes())
        inside = os.path.relpath(self._hidden, self._root)
        if not inside.startswith(".."):
            lines.append(os.fsencode("/" + re.sub(r"([\\*?\[\] ])", r"\\\1", inside)))
        return b"\n".join(lines) + b"\n"

    def _settings(self, found: Theirs | None = None) -> dict[str, str]:
        settings = {"GIT_DIR": str(self._place)}
        options = dict(_SETTINGS)
        if found is not None:
            settings |= {"GIT_WORK_TREE": self._root, "GIT_INDEX_FILE": str(self._index)}
            settings |= {"GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(found.objects)}
            if self._ignored is None:
                self._ignored = ignored_everywhere()
            options |= {"core.excludesFile": self._ignored} if self._ignored else {}
        for number, (name, value) in enumerate(options.items()):
            settings |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return settings | {"GIT_CONFIG_COUNT": str(len(options))}

    def _listed(self, settings: dict[str, str]) -> list[bytes]:
        """What is not as the index has it: changed, gone, or new. A name with a slash at its end is a repository."""
        told = self._git.run("ls-files", "-z", "-m", "-d", "-o", "--exclude-standard", settings=settings)
        return [one for one in told.split(b"\0") if one and not one.endswith(b"/")]

    def _in_conflict(self, settings: dict[str, str]) -> list[bytes]:
        """What the user's index has in several versions; ours has each file once."""
        told = self._git.run("ls-files", "-z", "-u", settings=settings)
        return [one.partition(b"\t")[2] for one in told.split(b"\0") if one]

    def _sorted(self, listed: list[bytes]) -> tuple[list[bytes], dict[bytes, os.stat_result]]:
        """Files to store, and files that are too big for that. One that we may not read is as if it had not changed."""
        small: list[bytes] = []
        big: dict[bytes, os.stat_result] = {}
        root = os.fsencode(self._root)
        for path in sorted(set(listed)):
            try:
                found = os.lstat(os.path.join(root, path))
            except OSError:
                small.append(path)  # gone
                continue
            if not stat.S_ISREG(found.st_mode):
                small.append(path)
            elif found.st_size > BIG:
                big[path] = found
            elif os.access(os.path.join(root, path), os.R_OK):
                small.append(path)
        return small, big

    def _update(self, paths: list[bytes], settings: dict[str, str], tries: list[int]) -> None:
        """Takes these files into our index. If one of them cannot be taken, all others are."""
        if not paths:
            return
        asked = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        try:
            self._git.run(*asked, settings=settings, given=b"\0".join(paths) + b"\0")
        except GitFailed:
            tries[0] -= 1
            if tries[0] < 0:
                raise
            if len(paths) > 1:
                middle = len(paths) // 2
                self._update(paths[:middle], settings, tries)
                self._update(paths[middle:], settings, tries)

    def _tree(self, big: dict[bytes, os.stat_result], settings: dict[str, str]) -> str:
        """Stand-ins are in a copy of the index: in ours git would read the whole file each time to compare."""
        if big:
            copy = str(self._place / "index.big")
            settings = settings | {"GIT_INDEX_FILE": copy}
            if self._index.exists():
                shutil.copy2(self._index, copy)
            lines = [self._stand_in(path, found, settings) for path, found in big.items()]
            self._git.run("update-index", "-z", "--index-info", settings=settings, given=b"".join(lines))
        return self._git.run("write-tree", "--missing-ok", settings=settings).decode().strip()

    def _stand_in(self, path: bytes, found: os.stat_result, settings: dict[str, str]) -> bytes:
        """The NUL makes git call it binary."""
        words = f"\0{found.st_size} bytes, written at {found.st_mtime_ns}\n".encode()
        name = self._git.run("hash-object", "-w", "--stdin", settings=settings, given=words).strip()
        mode = b"100755" if found.st_mode & stat.S_IXUSR else b"100644"
        return b"%s %s\t%s\0" % (mode, name, path)

    # --- what is kept

    def keep(self, session_id: str, names: tuple[str, ...], tree: str, at: int) -> Mark:
        """The snapshot stays under these names, and what had them before goes."""
        settings = self._settings(theirs(self._root))
        made = self._git.run("commit-tree", tree, "-m", str(at), settings=settings).decode().strip()
        lines = [f"update {_ref(session_id, name)} {made}\n" for name in names]
        self._git.run("update-ref", "--stdin", settings=settings, given="".join(lines).encode())
        return Mark(made, at)

    def drop(self, session_id: str, *names: str) -> None:
        lines = [f"delete {_ref(session_id, name)}\n" for name in names]
        self._git.run("update-ref", "--stdin", settings=self._settings(), given="".join(lines).encode())

    def kept(self, session_id: str) -> dict[str, Mark]:
        """By name. None when nothing was ever kept here."""
        if not (self._place / "HEAD").exists():
            return {}
        wanted = ("--format=%(refname:lstrip=3) %(objectname) %(contents:subject)", _ref(session_id))
        said = self._git.run("for-each-ref", *wanted, settings=self._settings()).decode()
        marks = (line.split(" ") for line in said.splitlines())
        return {name: Mark(made, int(at)) for name, made, at in marks}

    # --- what changed

    def compared(self, base: str, target: str) -> list[ChangedFile]:
        """Every file that is not the same in both."""
        told = ("diff-tree", "-r", "-z", "--raw", "--numstat", *_COMPARED, base, target)
        return changed_files(self._git.run(*told, settings=self._settings(theirs(self._root))))

    def patch(self, base: str, target: str) -> tuple[str, bool]:
        """As unified text, up to a limit and whole lines only; and whether that is all of it."""
        settings = self._settings(theirs(self._root))
        said, is_whole = self._git.begin_of(
            "diff-tree", "-r", "-p", *_COMPARED, base, target, settings=settings, limit=PATCH_LIMIT
        )
        if not is_whole:
            said = said[: said.rfind(b"\n") + 1]
        return said.decode(errors="replace"), is_whole

    # --- order

    def tidy(self, session_ids: frozenset[str], thorough: bool) -> None:
        """Forgets all sessions but these; the whole of it if none is left. `thorough` gives back what nobody needs."""
        wanted = {_safe(one) for one in session_ids}
        said = self._git.run("for-each-ref", "--format=%(refname)", _REFS, settings=self._settings()).decode()
        refs = said.splitlines()
        left = [ref for ref in refs if ref.split("/")[2] not in wanted]
        if len(left) == len(refs):
            shutil.rmtree(self._place, ignore_errors=True)
            return
        if left:
            lines = "".join(f"delete {ref}\n" for ref in left)
            self._git.run("update-ref", "--stdin", settings=self._settings(), given=lines.encode())
        if thorough:
            self._git.run("gc", "-q", "--auto", "--prune=now", settings=self._settings(theirs(self._root)))


def roots_in(folder: Path) -> list[str]:
    """The repositories that have a shadow in this folder."""
    found: list[str] = []
    for place in folder.glob(f"*.git/{_ROOT}"):
        with contextlib.suppress(OSError):
            found.append(os.fsdecode(place.read_bytes()))
    return found


_COMPARED = ("-M", "--no-color", "--no-ext-diff", "--no-textconv")


def _safe(session_id: str) -> str:
    """An id as a part of a ref's name."""
    if re.fullmatch(r"[0-9a-zA-Z-]{1,100}", session_id):
        return session_id
    return hashlib.sha256(session_id.encode(errors="surrogatepass")).hexdigest()


def _ref(session_id: str, name: str = "") -> str:
    return f"{_REFS}/{_safe(session_id)}/{name}" if name else f"{_REFS}/{_safe(session_id)}"


def _quoted(path: str) -> str:
    """In a list with colons between."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
