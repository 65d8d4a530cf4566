"""Take snapshots of a working tree in a repository of our own, without touching anything of the user's repository.

A snapshot is a git tree of everything that git would track: tracked files as they are on disk, and untracked files unless
they are ignored. Objects, index and refs are in the deck's home. Objects that the user's repository already has are read
from there and not stored again. A nested repository is one entry, as in git itself, or missing if it isn't tracked.
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

from quarterdeck.deck.git.diff import ChangedFile, parse_changed_files
from quarterdeck.deck.git.run_git import Git, GitFailed, global_excludes_file

#: Larger files aren't stored. A placeholder records their size and modification time, and they are shown as binary.
BIG_FILE = 8 * 1024 * 1024
PATCH_LIMIT = 1024 * 1024
_REFS = "refs/quarterdeck"
#: File in a snapshot repository that names the root of the user's repository.
_ROOT_FILE = "root"
#: How often a list of files is split in half to isolate the ones that git can't read.
_MAX_SPLITS = 40
_DIFF_OPTIONS = ("-M", "--no-color", "--no-ext-diff", "--no-textconv")
_CONFIG = {
    "core.quotePath": "false",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.autocrlf": "false",
    "core.compression": "1",
    "core.logAllRefUpdates": "false",
    "gc.auto": "1000",
    "gc.autoDetach": "false",
}


class Snapshot(NamedTuple):
    """A saved snapshot: its commit id, and when it was taken (milliseconds)."""

    id: str
    at: int


class UserRepository(NamedTuple):
    """Paths of the parts of the user's repository that snapshots read."""

    index_file: str
    objects: str
    excludes: str
    config: str


def locate_user_repository(root: str) -> UserRepository:
    """Return the paths inside `.git`. In a worktree or submodule, `.git` is a file that names the real folder."""
    folder = os.path.join(root, ".git")
    if os.path.isfile(folder):
        target = Path(folder).read_text("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
        folder = os.path.join(root, target)
    common = folder
    with contextlib.suppress(OSError):
        common = os.path.join(folder, Path(folder, "commondir").read_text("utf-8", "surrogateescape").strip())
    shared = [os.path.join(common, *parts) for parts in (("objects",), ("info", "exclude"), ("config",))]
    return UserRepository(os.path.join(folder, "index"), *shared)


class SnapshotRepository:
    """The snapshots of the repository at `root`. Methods block and aren't safe to call concurrently."""

    def __init__(self, git: Git, folder: Path, root: str, hidden: Path) -> None:
        """Keep the snapshots in `folder`. The folder `hidden`, the deck's own home, is never included in one."""
        self._git = git
        self._folder = folder
        self._root = root
        self._hidden = hidden
        self._index = folder / "index"
        self._global_excludes: str | None = None

    # --- take a snapshot

    def snapshot(self) -> str:
        """Store the working tree as it is now and return the id of its tree.

        Raises:
            GitFailed: git can't read the working tree.
            GitMissing: git isn't installed.
        """
        user = locate_user_repository(self._root)
        is_new = self._prepare(user)
        settings = self._settings(user)
        try:
            paths = self._list_changed(settings) + (self._list_conflicts(settings) if is_new else [])
        except GitFailed:
            # This git can't read the index that we copied. Without an index every file is read, which only takes longer.
            self._index.unlink(missing_ok=True)
            paths = self._list_changed(settings)
        small, big = self._split_by_size(paths)
        self._update_index(small, settings, [_MAX_SPLITS])
        return self._write_tree(big, settings)

    def _prepare(self, user: UserRepository) -> bool:
        """Create the repository if it's missing, and return whether it was.

        The first index is a copy of the user's, so that only files changed since then must be read. git trusts an index
        entry only if it's older than the index file, so the copy keeps the time of the original.
        """
        is_new = not (self._folder / "HEAD").exists()
        if is_new:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, parents=True)
            (self._folder / _ROOT_FILE).write_bytes(os.fsencode(self._root))
            object_format = f"--object-format={self._object_format(user)}"
            self._git.run("init", "-q", "--bare", "--template=", object_format, str(self._folder), settings={})
            with contextlib.suppress(OSError):
                shutil.copy2(user.index_file, self._index)
        # A git process that was killed leaves lock files. Only one runs here at a time, so they can be removed.
        for leftover in ("index.lock", "index.big", "index.big.lock"):
            (self._folder / leftover).unlink(missing_ok=True)
        (self._folder / "info").mkdir(exist_ok=True)
        (self._folder / "info" / "exclude").write_bytes(self._excludes(user))
        return is_new

    def _object_format(self, user: UserRepository) -> str:
        with contextlib.suppress(GitFailed):
            command = ("config", "-f", user.config, "--get", "extensions.objectFormat")
            return self._git.run(*command, settings={}).decode().strip()
        return "sha1"

    def _excludes(self, user: UserRepository) -> bytes:
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            lines.append(Path(user.excludes).read_bytes())
        inside = os.path.relpath(self._hidden, self._root)
        if not inside.startswith(".."):
            lines.append(os.fsencode("/" + re.sub(r"([\\*?\[\] ])", r"\\\1", inside)))
        return b"\n".join(lines) + b"\n"

    def _settings(self, user: UserRepository | None = None) -> dict[str, str]:
        """Return the environment for git; with `user`, one in which it sees the working tree and the user's objects."""
        settings = {"GIT_DIR": str(self._folder)}
        config = dict(_CONFIG)
        if user is not None:
            settings |= {"GIT_WORK_TREE": self._root, "GIT_INDEX_FILE": str(self._index)}
            settings |= {"GIT_ALTERNATE_OBJECT_DIRECTORIES": _quote_path(user.objects)}
            if self._global_excludes is None:
                self._global_excludes = global_excludes_file()
            config |= {"core.excludesFile": self._global_excludes} if self._global_excludes else {}
        for number, (name, value) in enumerate(config.items()):
            settings |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return settings | {"GIT_CONFIG_COUNT": str(len(config))}

    def _list_changed(self, settings: dict[str, str]) -> list[bytes]:
        """List files that differ from the index: changed, deleted or new."""
        output = self._git.run("ls-files", "-z", "-m", "-d", "-o", "--exclude-standard", settings=settings)
        # A name that ends with a slash is a nested repository.
        return [path for path in output.split(b"\0") if path and not path.endswith(b"/")]

    def _list_conflicts(self, settings: dict[str, str]) -> list[bytes]:
        """List files that the user's index has in several versions. Ours has each file once."""
        output = self._git.run("ls-files", "-z", "-u", settings=settings)
        return [line.partition(b"\t")[2] for line in output.split(b"\0") if line]

    def _split_by_size(self, paths: list[bytes]) -> tuple[list[bytes], dict[bytes, os.stat_result]]:
        """Separate files to store from files that are too big. Unreadable files are left out, as if unchanged."""
        small: list[bytes] = []
        big: dict[bytes, os.stat_result] = {}
        root = os.fsencode(self._root)
        for path in sorted(set(paths)):
            try:
                info = os.lstat(os.path.join(root, path))
            except OSError:
                small.append(path)  # It was deleted, which the index must learn.
                continue
            if not stat.S_ISREG(info.st_mode):
                small.append(path)
            elif info.st_size > BIG_FILE:
                big[path] = info
            elif os.access(os.path.join(root, path), os.R_OK):
                small.append(path)
        return small, big

    def _update_index(self, paths: list[bytes], settings: dict[str, str], splits_left: list[int]) -> None:
        """Add files to our index. If git can't add one of them, split the list until only that one is left out."""
        if not paths:
            return
        command = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        try:
            self._git.run(*command, settings=settings, stdin=b"\0".join(paths) + b"\0")
        except GitFailed:
            splits_left[0] -= 1
            if splits_left[0] < 0:
                raise
            if len(paths) > 1:
                middle = len(paths) // 2
                self._update_index(paths[:middle], settings, splits_left)
                self._update_index(paths[middle:], settings, splits_left)

    def _write_tree(self, big: dict[bytes, os.stat_result], settings: dict[str, str]) -> str:
        if big:
            # Placeholders go into a copy of the index. In the index itself they would make git read the whole file each
            # time, to compare it with the placeholder.
            copy = str(self._folder / "index.big")
            settings = settings | {"GIT_INDEX_FILE": copy}
            if self._index.exists():
                shutil.copy2(self._index, copy)
            lines = [self._placeholder(path, info, settings) for path, info in big.items()]
            self._git.run("update-index", "-z", "--index-info", settings=settings, stdin=b"".join(lines))
        return self._git.run("write-tree", "--missing-ok", settings=settings).decode().strip()

    def _placeholder(self, path: bytes, info: os.stat_result, settings: dict[str, str]) -> bytes:
        # The NUL makes git treat the placeholder as binary.
        content = f"\0{info.st_size} bytes, written at {info.st_mtime_ns}\n".encode()
        object_id = self._git.run("hash-object", "-w", "--stdin", settings=settings, stdin=content).strip()
        mode = b"100755" if info.st_mode & stat.S_IXUSR else b"100644"
        return b"%s %s\t%s\0" % (mode, object_id, path)

    # --- save snapshots under names

    def save(self, session_id: str, names: tuple[str, ...], tree: str, at: int) -> Snapshot:
        """Save a tree under these names of a session, replacing what they named before."""
        settings = self._settings(locate_user_repository(self._root))
        commit = self._git.run("commit-tree", tree, "-m", str(at), settings=settings).decode().strip()
        lines = [f"update {_ref(session_id, name)} {commit}\n" for name in names]
        self._git.run("update-ref", "--stdin", settings=settings, stdin="".join(lines).encode())
        return Snapshot(commit, at)

    def drop(self, session_id: str, *names: str) -> None:
        """Delete these names of a session."""
        lines = [f"delete {_ref(session_id, name)}\n" for name in names]
        self._git.run("update-ref", "--stdin", settings=self._settings(), stdin="".join(lines).encode())

    def load(self, session_id: str) -> dict[str, Snapshot]:
        """Return the session's snapshots by name."""
        if not (self._folder / "HEAD").exists():
            return {}
        options = ("--format=%(refname:lstrip=3) %(objectname) %(contents:subject)", _ref(session_id))
        output = self._git.run("for-each-ref", *options, settings=self._settings()).decode()
        fields = (line.split(" ") for line in output.splitlines())
        return {name: Snapshot(commit, int(at)) for name, commit, at in fields}

    # --- compare

    def compare(self, base: str, target: str) -> list[ChangedFile]:
        """List all files that differ between two snapshots."""
        command = ("diff-tree", "-r", "-z", "--raw", "--numstat", *_DIFF_OPTIONS, base, target)
        return parse_changed_files(self._git.run(*command, settings=self._settings(locate_user_repository(self._root))))

    def patch(self, base: str, target: str) -> tuple[str, bool]:
        """Return the difference as a unified diff, and whether it is complete. It is cut at a line break."""
        settings = self._settings(locate_user_repository(self._root))
        output, is_complete = self._git.read_start(
            "diff-tree", "-r", "-p", *_DIFF_OPTIONS, base, target, settings=settings, limit=PATCH_LIMIT
        )
        if not is_complete:
            output = output[: output.rfind(b"\n") + 1]
        return output.decode(errors="replace"), is_complete

    # --- clean up

    def prune(self, session_ids: frozenset[str], *, collect_garbage: bool) -> None:
        """Delete the snapshots of all other sessions, and the whole repository if none of these has any."""
        keep = {_ref_part(session_id) for session_id in session_ids}
        output = self._git.run("for-each-ref", "--format=%(refname)", _REFS, settings=self._settings()).decode()
        refs = output.splitlines()
        unwanted = [ref for ref in refs if ref.split("/")[2] not in keep]
        if len(unwanted) == len(refs):
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        if unwanted:
            lines = "".join(f"delete {ref}\n" for ref in unwanted)
            self._git.run("update-ref", "--stdin", settings=self._settings(), stdin=lines.encode())
        if collect_garbage:
            settings = self._settings(locate_user_repository(self._root))
            self._git.run("gc", "-q", "--auto", "--prune=now", settings=settings)


def list_roots(folder: Path) -> list[str]:
    """List the roots of all repositories that have snapshots in this folder."""
    roots: list[str] = []
    for file in folder.glob(f"*.git/{_ROOT_FILE}"):
        with contextlib.suppress(OSError):
            roots.append(os.fsdecode(file.read_bytes()))
    return roots


def _ref_part(session_id: str) -> str:
    """Return the session id in a form that may be part of a ref's name."""
    if re.fullmatch(r"[0-9a-zA-Z-]{1,100}", session_id):
        return session_id
    return hashlib.sha256(session_id.encode(errors="surrogatepass")).hexdigest()


def _ref(session_id: str, name: str = "") -> str:
    return f"{_REFS}/{_ref_part(session_id)}/{name}" if name else f"{_REFS}/{_ref_part(session_id)}"


def _quote_path(path: str) -> str:
    """Quote a path for git's colon-separated list of object folders."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
