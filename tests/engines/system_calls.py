"""Records a process's file system calls, and computes the disk states that a power loss may leave."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field, frozen

from hexloop.adapters.storage.local import syncing

ROOT = 0
"""The number of the folder that exists at the start."""

State = tuple[dict[int, dict[str, int]], dict[int, bytes]]
"""The entries of each folder, and the bytes of each file, by number: a name refers to a number, as to an inode."""


@frozen
class Call:
    """A change of the tree, or a sync that makes earlier changes durable.

    kind: "make" (a file or folder `node` as `name` in `folder`), "write" (`data` to the file `node`), "rename" (of
    `node` from `name` in `folder` to `new_name` in `new_folder`), "unlink" (of `node`), or "sync" (of `node`).
    """

    kind: str
    node: int
    folder: int = ROOT
    name: str = ""
    new_folder: int = ROOT
    new_name: str = ""
    data: bytes = b""
    is_folder: bool = False

    @property
    def folders(self) -> tuple[int, ...]:
        """Return the folders whose entries it changes."""
        return () if self.kind in ("write", "sync") else (self.folder, self.new_folder)[: 1 + (self.kind == "rename")]


@define
class Recorder:
    """Calls the real functions of `os`, and records the calls."""

    root: Path
    calls: list[Call] = field(factory=list)
    _nodes: dict[str, int] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=lambda: count(1))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._nodes[str(self.root)] = ROOT
        for name in ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        sync_file_system = syncing._syncfs()
        if sync_file_system is not None:
            recorded = self._syncfs(sync_file_system)
            monkeypatch.setattr(syncing, "_syncfs", lambda: recorded)

    def _path(self, path: Any, dir_fd: int | None = None) -> str:
        if dir_fd is not None:
            return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), str(path))
        return str(os.path.abspath(path))

    def _inside(self, path: str) -> bool:
        return path.startswith(f"{self.root}{os.sep}")

    def _note(self, kind: str, path: str, **facts: Any) -> None:
        folder, name = os.path.split(path)
        self.calls.append(Call(kind, self._nodes[path], self._nodes[folder], name, **facts))

    def _made(self, path: str, is_folder: bool) -> None:
        if self._inside(path):
            self._nodes[path] = next(self._numbers)
            self._note("make", path, is_folder=is_folder)

    def _gone(self, path: str) -> None:
        if self._inside(path):
            self._note("unlink", path)
            del self._nodes[path]

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            descriptor = real(path, flags, mode, dir_fd=dir_fd)
            if flags & os.O_CREAT:
                self._made(self._path(path, dir_fd), is_folder=False)
            return descriptor

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any) -> int:
            written = real(descriptor, data)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if self._inside(path):
                self.calls.append(Call("write", self._nodes[path], data=bytes(data[:written])))
            return written

        return call

    def _fsync(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(descriptor: int) -> None:
            real(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path in self._nodes:
                self.calls.append(Call("sync", self._nodes[path]))

        return call

    def _syncfs(self, real: Callable[[str], bool]) -> Callable[[str], bool]:
        def call(path: str) -> bool:
            synced = real(path)
            self.calls += [Call("sync", node) for node in self._nodes.values()] * synced
            return synced

        return call

    def _rename(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, destination: Any) -> None:
            real(source, destination)
            old, new = self._path(source), self._path(destination)
            folder, name = os.path.split(new)
            self._note("rename", old, new_folder=self._nodes[folder], new_name=name)
            moved = {path: node for path, node in self._nodes.items() if path == old or path.startswith(f"{old}/")}
            for path, node in moved.items():
                del self._nodes[path]
                self._nodes[new + path.removeprefix(old)] = node

        return call

    def _mkdir(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real(path, mode, dir_fd=dir_fd)
            self._made(self._path(path, dir_fd), is_folder=True)

        return call

    def _unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *, dir_fd: int | None = None) -> None:
            full = self._path(path, dir_fd)
            real(path, dir_fd=dir_fd)
            self._gone(full)

        return call

    _rmdir = _unlink


def after_power_cut(calls: list[Call], seed: int = 0) -> Iterator[State]:
    """Return states that the disk may have after these calls.

    Synced data are there. Of other folder changes: all, none, all but renames, all but removals, and some random sets.
    Of the other bytes of a file: all, none, or the first half.
    """
    durable = _durable(calls)
    pending = [number for number, call in enumerate(calls) if call.folders and number not in durable]
    some = random.Random(seed)
    choices = [
        set(pending),
        set(),
        {number for number in pending if calls[number].kind != "rename"},
        {number for number in pending if calls[number].kind == "rename"},
        {number for number in pending if calls[number].kind != "unlink"},
        *({number for number in pending if some.random() < 0.5} for _ in range(2)),
    ]
    for chosen in choices if pending else choices[:1]:
        folders = _tree([call for number, call in enumerate(calls) if number in durable | chosen])
        for share in (1.0, 0.0, 0.5):
            yield folders, _files(calls, share)


def _durable(calls: list[Call]) -> set[int]:
    """Return the folder changes that a later sync of each folder involved made durable."""
    synced: dict[int, int] = {call.node: number for number, call in enumerate(calls) if call.kind == "sync"}
    return {
        number
        for number, call in enumerate(calls)
        if call.folders and all(synced.get(folder, -1) > number for folder in call.folders)
    }


def _tree(calls: list[Call]) -> dict[int, dict[str, int]]:
    folders: dict[int, dict[str, int]] = {ROOT: {}}
    for call in calls:
        if call.kind == "make":
            folders.setdefault(call.folder, {})[call.name] = call.node
            if call.is_folder:
                folders.setdefault(call.node, {})
        elif call.folders:
            entries = folders.setdefault(call.folder, {})
            if entries.get(call.name) == call.node:
                del entries[call.name]
            if call.kind == "rename":
                folders.setdefault(call.new_folder, {})[call.new_name] = call.node
    return folders


def _files(calls: list[Call], share: float) -> dict[int, bytes]:
    """Return the bytes of each file: those written before its last sync, and part of the later ones."""
    files: dict[int, tuple[bytes, bytes]] = {}
    for call in calls:
        safe, cached = files.get(call.node, (b"", b""))
        if call.kind == "write":
            files[call.node] = safe, cached + call.data
        elif call.kind == "sync":
            files[call.node] = safe + cached, b""
    return {node: safe + cached[: int(len(cached) * share)] for node, (safe, cached) in files.items()}


def lay_out(state: State, folder: Path) -> None:
    """Write a state of the disk into an empty folder."""
    folders, files = state

    def fill(node: int, path: Path) -> None:
        path.mkdir()
        for name, inner in folders[node].items():
            if inner in folders:
                fill(inner, path / name)
            else:
                (path / name).write_bytes(files.get(inner, b""))

    fill(ROOT, folder)
