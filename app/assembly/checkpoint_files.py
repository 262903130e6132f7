"""The files of a checkpoint, read outside a run, and how far two of its tensors are apart."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from hexloop.adapters.contents import documents
from hexloop.adapters.contents.adapter_files import STATE, is_adapter_file
from hexloop.adapters.contents.checkpoint import documents_of, files_of, parts_of
from hexloop.adapters.contents.file_names import PREFIX
from hexloop.adapters.contents.run_documents import SETUP, RunDocuments, is_documents_file
from hexloop.adapters.contents.safetensors_files import INDEX, MODEL, Stream, component_of, is_weights, tensor_parts
from hexloop.app.assembly.saved_setup import check_setup
from hexloop.domain.checkpoints.blocks import VerifiedFiles
from hexloop.domain.checkpoints.reading import Checkpoint
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_value
from hexloop.domain.run_folder import RUN_STATE, TRAINER_STATE
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from hexloop.ports.storage import File, Storage, Stored

if TYPE_CHECKING:
    pass


TENSORS, DOCUMENT = ".safetensors", ".json"

RUN_COMPONENTS = ("optimizer", "averages", "scheduler", "scaler", "losses", "data", "random", SETUP)
"""The components of a run other than the model, and the setup, which had files of these names in hexloop 0.1."""

_PARTS = r"(-rank-\d{5}|-\d{5}-of-\d{5})?\.(json|safetensors(\.index\.json)?)"

_RUN_FILE = re.compile(rf"({PREFIX})?({'|'.join(RUN_COMPONENTS)}){_PARTS}|{PREFIX}{MODEL}{_PARTS}")


@frozen
class CheckpointFiles:
    """The files of a checkpoint in a storage. files: the size and digest of each, by path.

    opened: opens the files of a checkpoint that was verified; without it, what is read is not verified.
    The methods that read raise CheckpointError for a file that is not what its name says, and StorageError if it cannot
    be read.
    """

    storage: Storage
    name: str
    files: Mapping[str, Stored]
    opened: VerifiedFiles | None = field(default=None, eq=False)
    _documents: RunDocuments = field(init=False, eq=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointFiles:
        """Return the files of a checkpoint that was verified."""
        return cls(checkpoint.files.storage, checkpoint.name, checkpoint.manifest.files, checkpoint.files)

    @_documents.default
    def _make_documents(self) -> RunDocuments:
        return RunDocuments({RUN_STATE, *self.files}, self.read)

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Read the bytes of a file from `start` on. Raises ChangedCheckpointError if they are not those verified."""
        if self.opened is not None:
            return self.opened(path, start)
        return self.storage.read(f"{self.name}/{path}", start)

    def documents(self) -> dict[str, Any]:
        """Return the JSON documents by the names of their files, the run state last.

        Those that are in one file with others have the names that they would have as files of their own. The index of
        shards describes files and is left out, and so is a file that is not a JSON document.
        """
        found: dict[str, Any] = {}
        for path in sorted(self.files):
            if path.endswith(DOCUMENT) and path != INDEX and not self._has_several(path):
                with suppress(CheckpointError):  # not written by hexloop
                    found[path] = documents.read(self.read(path), path)
        if RUN_STATE in self.files:
            for name, document in self._documents.stored():
                path = f"{name}{DOCUMENT}"
                found[f"{PREFIX}{path}" if path in self.files and not self._has_several(path) else path] = document
        return dict(sorted(found.items(), key=lambda item: _order(item[0])))

    def run_state(self) -> RunState:
        """Return the state of the run."""
        return self._documents.state()

    def run_setup(self) -> dict[str, Any]:
        """Return how the run was set up; empty if that was not saved. Raises CheckpointError if it is invalid."""
        setup = self._documents.read(SETUP)
        check_setup(setup, f"{SETUP} in {self._documents.path_of(SETUP)}")
        return setup

    def tensors(self, path: str) -> list[Part]:
        """Return the tensors of a safetensors file, whose data are read later."""
        return tensor_parts(Stream(self.read), path)

    def parts(self, component: str) -> list[Part]:
        """Return the state of a component such as "model" or "optimizer", whose tensors are read later."""
        return parts_of(component, self.files, self.read, self._documents if RUN_STATE in self.files else None)

    def tensor_files(self) -> dict[str, list[str]]:
        """Return the files with tensors by component, the model's first. Shards are grouped."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.files, key=_order):
            if path.endswith(TENSORS):
                found.setdefault(component_of(path), []).append(path)
        return found

    def other_files(self) -> list[str]:
        """Return all files that have neither tensors nor documents."""
        found = self.documents()
        paths = (path for path in sorted(self.files) if not path.endswith(TENSORS) and path != INDEX)
        return [path for path in paths if path not in found and not self._has_several(path)]

    def _has_several(self, path: str) -> bool:
        """Return whether a file has several documents."""
        return is_documents_file(path) and RUN_STATE in self.files and self._documents.are_together

    def model_files(self) -> Iterator[File]:
        """Yield the files of the model alone, with all weights in one file, which comes last.

        If a method of the user's wrote the model's files, they are copied as they are.
        """
        if any(path.startswith(f"{PREFIX}{MODEL}") and is_run_file(path) for path in self.files):
            yield from (File(path, self.read(path)) for path in self.files if not is_run_file(path))
            return
        for path in self.files:
            if not is_run_file(path) and not is_weights(path) and path != f"{MODEL}.json" and not is_adapter_file(path):
                yield File(path, self.read(path))
        whole, parts = any(map(is_weights, self.files)), self.parts(MODEL)
        if whole:  # and adapters of PEFT beside it
            yield from (File(path, self.read(path)) for path in self.files if is_adapter_file(path))
        if whole and (values := {part.name: json_value(part) for part in documents_of(parts)}):
            yield File(f"{MODEL}{DOCUMENT}", [documents.encode(MODEL, values) + b"\n"])
        yield from (file for file in files_of(MODEL, parts, sys.maxsize) if file.path != STATE)


def is_run_file(path: str) -> bool:
    """Return whether a file contains state of the run, and not the model, written by one process or by several."""
    return path in (TRAINER_STATE, STATE) or is_documents_file(path) or _RUN_FILE.fullmatch(path) is not None


def _order(path: str) -> tuple[bool, bool, bool, str]:
    """Sort the model first, then the optimizer, and the run state last."""
    return (
        not (is_weights(path) or is_adapter_file(path)),
        not path.startswith(("optimizer.", "optimizer-")),
        path == RUN_STATE,
        path,
    )
