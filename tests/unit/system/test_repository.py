"""The state of a git repository, also of one that tries to run something."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hexloop.app.run import repository
from hexloop.app.run.repository import RepositoryState, state_of_repository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    """Each test asks git anew."""
    state_of_repository.cache_clear()
    yield
    state_of_repository.cache_clear()


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *author, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with two files and a commit."""
    folder = tmp_path / "checkout"
    (folder / "inside").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=work")
    for name in ("train.py", "inside/data.txt"):
        (folder / name).write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def test_a_clean_checkout_has_its_commit(checkout: Path) -> None:
    """Also if it is asked of a folder in it."""
    commit = git(checkout, "rev-parse", "HEAD")
    assert state_of_repository(str(checkout / "inside")) == RepositoryState(commit, "work", 0)


def test_changed_files_are_counted(checkout: Path) -> None:
    """Those that are tracked: changed, added, removed; not others, and not those that were only touched."""
    (checkout / "train.py").write_text("2\n")
    (checkout / "inside" / "data.txt").unlink()
    (checkout / "new.py").write_text("")
    git(checkout, "add", "new.py")
    (checkout / "untracked").write_text("")
    found = state_of_repository(str(checkout))
    assert found is not None
    assert found.changed_files == 3


def test_a_file_that_was_only_touched_has_not_changed(checkout: Path) -> None:
    """As in a copy of a checkout; the index is not written to."""
    os.utime(checkout / "train.py", (1, 1))
    before = (checkout / ".git" / "index").read_bytes()
    found = state_of_repository(str(checkout))
    assert found is not None
    assert found.changed_files == 0
    assert (checkout / ".git" / "index").read_bytes() == before


def test_a_commit_without_a_branch_has_none(checkout: Path) -> None:
    """As after checking out a commit."""
    git(checkout, "checkout", "--quiet", "--detach")
    found = state_of_repository(str(checkout))
    assert found is not None
    assert found.branch == ""


def test_what_is_no_repository_has_no_state(tmp_path: Path, checkout: Path) -> None:
    """Nor one without a commit, nor a broken one."""
    assert state_of_repository(str(tmp_path)) is None
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert state_of_repository(str(empty)) is None
    (checkout / ".git" / "HEAD").write_text("ref: ../../../etc/passwd\n")
    assert state_of_repository(str(checkout)) is None


ATTACKS = {
    "file system monitor": ["core.fsmonitor", "PROGRAM"],
    "hooks": ["core.hooksPath", "FOLDER"],
    "clean filter": ["filter.attack.clean", "PROGRAM"],
    "required filter": ["filter.attack.required", "true", "filter.attack.clean", "PROGRAM"],
    "filter process": ["filter.attack.process", "PROGRAM"],
    "filter of another name": ["filter.at=tack.clean", "PROGRAM"],
    "smudge filter": ["filter.attack.smudge", "PROGRAM"],
    "diff driver": ["diff.attack.command", "PROGRAM", "diff.attack.textconv", "PROGRAM"],
    "external diff": ["diff.external", "PROGRAM"],
    "pager": ["core.pager", "PROGRAM", "pager.status", "true"],
    "alias": ["alias.status", "!PROGRAM", "alias.config", "!PROGRAM", "alias.rev-parse", "!PROGRAM"],
    "ssh": ["core.sshCommand", "PROGRAM", "remote.origin.url", "ssh://a/b", "remote.origin.promisor", "true"],
    "helper of a remote": ["remote.origin.url", "ext::PROGRAM", "protocol.ext.allow", "always"],
    "editor": ["core.editor", "PROGRAM", "sequence.editor", "PROGRAM"],
    "signatures": ["gpg.program", "PROGRAM", "log.showSignature", "true"],
    "credentials": ["credential.helper", "!PROGRAM"],
    "merge driver": ["merge.attack.driver", "PROGRAM"],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_repository_runs_nothing(checkout: Path, tmp_path: Path, attack: str) -> None:
    """Of what its configuration, its attributes and its hooks name."""
    program = tmp_path / "attack.sh"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/attacked'\ncat\n")
    program.chmod(0o755)
    hooks = checkout / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "post-checkout", "fsmonitor-watchman", "pre-auto-gc", "reference-transaction"):
        shutil.copy(program, hooks / name)
    names = ["attack", "at=tack"]
    (checkout / ".gitattributes").write_text(
        "".join(f"* filter={name} diff={name} merge={name}\n" for name in names[:1])
    )
    if "another" in attack:
        (checkout / ".git" / "info").mkdir(exist_ok=True)
        (checkout / ".git" / "info" / "attributes").write_text("* filter=at=tack\n")
    words = [each.replace("PROGRAM", str(program)).replace("FOLDER", str(hooks)) for each in ATTACKS[attack]]
    for name, value in zip(words[::2], words[1::2], strict=True):
        git(checkout, "config", name, value)
    if attack in ("ssh", "helper of a remote"):
        git(checkout, "config", "core.repositoryFormatVersion", "1")
        git(checkout, "config", "extensions.partialClone", "origin")
        blob = git(checkout, "rev-parse", "HEAD:train.py")
        path = checkout / ".git" / "objects" / blob[:2] / blob[2:]
        path.chmod(stat.S_IWUSR | stat.S_IRUSR)
        path.unlink()  # which git would fetch
        (checkout / "train.py").write_text("2\n")
    (tmp_path / "attacked").unlink(missing_ok=True)  # by the calls above
    os.utime(checkout / "train.py", (1, 1))
    (checkout / "inside" / "data.txt").write_text("2\n")
    found = state_of_repository(str(checkout))
    assert not (tmp_path / "attacked").exists()
    assert found is not None
    assert len(found.commit) == 40


def test_git_is_not_waited_for(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that hangs is ended, and what it has not said is not known."""
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text('#!/bin/sh\ncase "$*" in *status*) exec sleep 60;; esac\nexec /usr/bin/git "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(repository, "SECONDS", 1.0)
    found = state_of_repository(str(checkout))
    assert found is not None
    assert found.commit
    assert found.changed_files is None


def test_a_program_in_the_working_folder_is_not_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows would find it there."""
    (checkout / "git").write_text(f"#!/bin/sh\ntouch {checkout}/attacked\n")
    (checkout / "git").chmod(0o755)
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("PATH", f"{checkout}{os.pathsep}{os.environ['PATH']}")
    assert state_of_repository(str(checkout)) is None
    assert not (checkout / "attacked").exists()
