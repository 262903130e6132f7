"""The state of the git repository that a script is in, asked of git without running what the repository names.

A repository may come from elsewhere, and its own configuration can name programs: hooks, a file system monitor, filters
that convert files, helpers that fetch missing objects. All of these are switched off here, for each call.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic

from attrs import frozen

SECONDS = 5.0
"""How long git may take altogether; what it has not said by then is not known."""

MOST_BYTES = 1 << 20
"""Bytes of the list of changed files that are read; beyond them, at least as many files have changed."""

MOST_CONFIGURED = 256 << 10
"""Bytes of a list of filters. A repository with more is not asked for its changes."""

DEEPEST = 50
"""How many folders above the script are looked at."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

SWITCHED_OFF = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.untrackedCache": "false",
    "core.sshCommand": "false",
    "core.gitProxy": "",
    "core.askPass": "",
    "credential.helper": "",
    "diff.external": "",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "status.submoduleSummary": "false",
}
"""Settings that could start a program, and the values with which they do not."""


@frozen
class RepositoryState:
    """What is known of a repository. branch: "" outside of one. changed_files: tracked ones; None if not known."""

    commit: str
    branch: str = ""
    changed_files: int | None = None


@cache
def state_of_repository(folder: str) -> RepositoryState | None:
    """Return the state of the repository that a folder is in, as it was at the first call; None if it is in none.

    A script has read its code by then, so a later state is not that of the code that runs.
    """
    git, root = _program(), _root_of(folder)
    if git is None or root is None:
        return None
    ends_at = monotonic() + SECONDS
    asked = _asked(git, root, ["rev-parse", "--verify", "--quiet", "HEAD"], ends_at)
    commit = (asked or b"").decode(errors="replace").strip()
    if not _COMMIT.fullmatch(commit):
        return None
    branch = _asked(git, root, ["symbolic-ref", "--quiet", "--short", "HEAD"], ends_at) or b""
    return RepositoryState(commit, branch.decode(errors="replace").strip()[:200], _changed_files(git, root, ends_at))


def _changed_files(git: str, root: str, ends_at: float) -> int | None:
    """Return how many tracked files differ from the commit. Files that a filter converts are compared unconverted."""
    names = _asked(
        git, root, ["config", "--name-only", "--null", "--get-regexp", r"^filter\."], ends_at, MOST_CONFIGURED
    )
    if names is None or len(names) >= MOST_CONFIGURED:
        return None
    filters = {name.decode(errors="surrogateescape"): "" for name in names.split(b"\0") if name}
    off = {name: "false" if name.endswith(".required") else "" for name in filters}
    command = ["status", "--porcelain", "--null", "--untracked-files=no", "--ignore-submodules=all", "--no-renames"]
    found = _asked(git, root, command, ends_at, MOST_BYTES, off)
    return None if found is None else found.count(b"\0")


def _asked(
    git: str,
    root: str,
    command: Iterable[str],
    ends_at: float,
    most: int = 4096,
    further: Mapping[str, str] | None = None,
) -> bytes | None:
    """Return the first bytes of what git prints; None if it fails or takes too long. It is ended then."""
    environment = _environment({**SWITCHED_OFF, **(further or {})})
    line = [git, "--no-pager", "--no-optional-locks", "-C", root, *command]
    try:
        process = subprocess.Popen(  # the program is found by its absolute path
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError:
        return None
    timer = threading.Timer(max(ends_at - monotonic(), 0.0), process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            data = process.stdout.read(most)
        if len(data) >= most:
            process.kill()
            return data
        return data if process.wait() in (0, 1) else None
    finally:
        timer.cancel()
        with suppress(OSError):
            process.kill()
        process.wait()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of git: the process's own, with these settings over those of the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kept |= {
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
        "LC_ALL": "C",
    }
    for number, (name, value) in enumerate(settings.items()):
        kept[f"GIT_CONFIG_KEY_{number}"], kept[f"GIT_CONFIG_VALUE_{number}"] = name, value
    return kept


def _program() -> str | None:
    """Return the absolute path of git; None if there is none, or only one in the working folder."""
    found = shutil.which("git")
    if found is None or not os.path.isabs(found):
        return None
    return None if Path(found).parent == Path.cwd() else found


def _root_of(folder: str) -> str | None:
    """Return the folder with the repository that a folder is in."""
    path = Path(folder).absolute()
    for each in [path, *path.parents][:DEEPEST]:
        if os.path.lexists(each / ".git"):
            return str(each)
    return None
