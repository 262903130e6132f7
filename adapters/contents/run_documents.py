"""The JSON documents of a run, which a checkpoint has in one file for each process, `run_state.json` on rank 0.

The file is an object with a schema version and the documents by name: the run state, the run setup, and one for each
component that has one. Each document has its own schema version. Checkpoints of hexloop 0.1 have the run state alone in
`run_state.json`, and a file for each of the other documents; they are read as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field

from hexloop.adapters.contents import documents
from hexloop.adapters.contents.documents import VERSION, migrated, state_of
from hexloop.adapters.contents.file_names import names_by_component, own_files
from hexloop.domain.errors import CheckpointError
from hexloop.domain.run_folder import RUN_STATE
from hexloop.domain.state import RunState, migrate
from hexloop.ports.storage import File, OpenFile

STATE, SETUP = "run_state", "run_setup"
"""The names of the documents that belong to no component."""

OPTIMIZER = "optimizer"
"""The component, and the name of its document."""

FILE_VERSION = 2
"""The schema version of a file with several documents. In a file of version 1, there is only the run state."""

_FIRST = re.compile(rb'\{"schema_version": \d{1,6}')
_STATE_ALONE = b'{"schema_version": 1,'
_LINE = re.compile(rb'"(\w{1,200})": (\{[^\n]*\})')
_OF_RANK = re.compile(r"(.+?)(-rank-\d{5})?")


def documents_path(rank: int = 0) -> str:
    """Return the file with the documents of a process."""
    return RUN_STATE if rank == 0 else f"run_state-rank-{rank:05}.json"


def documents_file(encoded: Mapping[str, bytes], rank: int = 0) -> File:
    """Return the file with the documents of a process, one a line. encoded: see `documents.encode`, by name."""
    lines = [f'"{VERSION}": {FILE_VERSION}'.encode()]
    lines += [documents.to_bytes(name).rstrip() + b": " + document for name, document in encoded.items()]
    return File(documents_path(rank), [b"{" + b",\n".join(lines) + b"}\n"])


@define(eq=False)
class RunDocuments:
    """Reads the documents of a checkpoint. A file is read when the first of its documents is asked for.

    The documents of rank 0, and those that were read last, are kept; there may be those of many thousand processes.

    names: the files of the checkpoint. open_file: reads one of them.
    """

    _names: Collection[str]
    _open_file: OpenFile
    _files: dict[str, dict[str, Any]] = field(factory=dict, init=False)
    _by_component: dict[str, list[str]] | None = field(default=None, init=False)

    def read(self, name: str) -> dict[str, Any]:
        """Return a document, migrated to the current schema version; empty if it does not exist.

        name: of a component, with the suffix "-rank-00001" for another process's; or STATE or SETUP.
        Raises CheckpointError if its file is invalid, or the document has a newer schema version.
        """
        if self.are_together:
            component, path = _located(name)
            document = self._documents_in(path).get(component)
            if document is None:
                return {}
            return migrated(component, _parsed(component, document, path), f"{component} in {path}")
        names, open_file = own_files(name, self.names_of(name), self._open_file)
        path = f"{name}.json"
        if path not in names:
            return {}
        document = documents.read(open_file(path), path, proportional=name != OPTIMIZER)
        return migrated(name, document, path)

    def names_of(self, component: str) -> Collection[str]:
        """Return the names of the files of a component; those of the model's weights have other names, too."""
        if self._by_component is None:
            self._by_component = names_by_component(self._names)
        return self._by_component.get(component, ())

    def path_of(self, name: str) -> str:
        """Return the file with a document, if it exists."""
        return _located(name)[1] if self.are_together else f"{name}.json"

    def state(self) -> RunState:
        """Return the run state. Raises CheckpointError if there is none, or it is invalid."""
        return state_of(self.read(STATE))

    def stored(self) -> Iterator[tuple[str, Any]]:
        """Yield the name of each document that is in a file with others, and its value as it is stored."""
        for path in sorted(path for path in self._names if is_documents_file(path)) if self.are_together else ():
            suffix = path.removeprefix("run_state").removesuffix(".json")
            for name, document in self._documents_in(path).items():
                yield f"{name}{suffix}", _parsed(name, document, path)

    @property
    def are_together(self) -> bool:
        """Whether the documents of a process are in one file. Raises CheckpointError if that is invalid."""
        return RUN_STATE in self._names and self._content(RUN_STATE).get(VERSION) != 1

    def _documents_in(self, path: str) -> dict[str, Any]:
        """Return the documents in a file by name, each as its JSON or parsed; none if the file does not exist."""
        if path not in self._names:
            return {}
        content = migrate(self._content(path), {}, FILE_VERSION)
        del content[VERSION]
        return content

    def _content(self, path: str) -> dict[str, Any]:
        if path not in self._files:
            content = _content(self._open_file(path), path)
            self._files = {name: held for name, held in self._files.items() if name == RUN_STATE} | {path: content}
        return self._files[path]


def _content(chunks: Iterable[bytes | memoryview], path: str) -> dict[str, Any]:
    """Return the entries of a file. Documents that have a line of their own stay JSON, until they are needed.

    Raises CheckpointError if the file is invalid, as far as it was parsed.
    """
    data = documents.read_whole(chunks, path)
    first, *lines = data.removesuffix(b"}\n").split(b",\n")
    found = [_LINE.fullmatch(line) for line in lines]
    if not (lines and _FIRST.fullmatch(first) and all(found) and data.endswith(b"}\n")):
        content = documents.read([data], path, proportional=data.startswith(_STATE_ALONE))
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} is not a JSON object.")
        return content
    by_name = {match[1].decode(): match[2] for match in found if match}
    if len(by_name) != len(lines) or VERSION in by_name:
        raise CheckpointError(f"{path} is not a JSON document: it has a document twice.")
    entries: dict[str, Any] = documents.read([first, b"}"], path)
    return entries | by_name


def _parsed(name: str, document: Any, path: str) -> Any:
    """Return a document, which may be JSON still. The optimizer's has few values, however many bytes it has."""
    if not isinstance(document, bytes):
        return document
    return documents.read([document], f"{name} in {path}", proportional=name != OPTIMIZER)


def is_documents_file(path: str) -> bool:
    """Return whether a file of this name has the documents of a process."""
    return path == RUN_STATE or re.fullmatch(r"run_state-rank-\d{5}\.json", path) is not None


def _located(name: str) -> tuple[str, str]:
    """Return the name that a document has in its file, and the file."""
    match = _OF_RANK.fullmatch(name)
    assert match is not None
    return match[1], f"run_state{match[2] or ''}.json"
