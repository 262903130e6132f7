"""The files of a checkpoint, read outside a run: documents, tensors, run state and model weights."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hexloop.adapters.contents.checkpoint import CheckpointContents, documents
from hexloop.adapters.contents.checkpoint.contents import RUN_SETUP, RUN_STATE, files_of, parts_of
from hexloop.adapters.contents.checkpoint.documents import read_document, state_from_chunks
from hexloop.adapters.contents.checkpoint.safetensors_files import (
    INDEX,
    MODEL,
    Stream,
    component_of,
    is_weights,
    tensor_parts,
)
from hexloop.adapters.contents.checkpoint.user_files import PREFIX
from hexloop.domain.state import RunState
from hexloop.ports.files import File
from hexloop.ports.state import Part
from hexloop.ports.storage import Storage, Stored

if TYPE_CHECKING:
    import torch

TENSORS, DOCUMENT = ".safetensors", ".json"

TRAINER_STATE = "trainer_state.json"

RUN_COMPONENTS = ("optimizer", "scheduler", "scaler", "losses", "data", "random")
"""The components of a run other than the model."""

_PARTS = r"(-rank-\d{5}|-\d{5}-of-\d{5})?\.(json|safetensors(\.index\.json)?)"

_RUN_FILE = re.compile(rf"({PREFIX})?({'|'.join(RUN_COMPONENTS)}){_PARTS}|{PREFIX}{MODEL}{_PARTS}")


@frozen
class CheckpointFiles:
    """The files of a checkpoint in a storage. files: the size and digest of each, by path.

    The methods that read raise CheckpointError for a file that is not what its name says, and StorageError if it cannot
    be read.
    """

    storage: Storage
    name: str
    files: Mapping[str, Stored]

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Read the bytes of a file from `start` on."""
        return self.storage.read(f"{self.name}/{path}", start)

    def json(self, path: str) -> Any:
        """Return the value of a JSON document."""
        return documents.read(self.read(path))

    def document(self, path: str) -> dict[str, Any]:
        """Return the entries of a JSON object, migrated to the current schema; empty if there is no such file."""
        return read_document(path, self.files, self.read)

    @property
    def has_run_state(self) -> bool:
        """Whether the checkpoint contains the state of its run, and not only weights."""
        return RUN_STATE in self.files

    def run_state(self) -> RunState:
        """Return the state of the run."""
        return state_from_chunks(self.read(RUN_STATE))

    def run_setup(self) -> dict[str, Any]:
        """Return how the run was set up; empty if that was not saved."""
        return self.document(RUN_SETUP)

    def tensors(self, path: str) -> list[Part]:
        """Return the tensors of a safetensors file, whose data are read later."""
        return tensor_parts(Stream(self.read), path)

    def parts(self, component: str) -> list[Part]:
        """Return the state of a component such as "model" or "optimizer", whose tensors are read later."""
        return parts_of(component, self.files, self.read)

    def tensor_files(self) -> dict[str, list[str]]:
        """Return the files with tensors by component, the model's first. Shards are grouped."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.files, key=_order):
            if path.endswith(TENSORS):
                found.setdefault(component_of(path), []).append(path)
        return found

    def document_files(self) -> list[str]:
        """Return the JSON documents, the run state last. The index of shards describes files and is left out."""
        return sorted((path for path in self.files if path.endswith(DOCUMENT) and path != INDEX), key=_order)

    def other_files(self) -> list[str]:
        """Return all other files."""
        return [path for path in sorted(self.files) if not path.endswith((TENSORS, DOCUMENT)) and path != INDEX]

    def model_files(self) -> Iterator[File]:
        """Yield the files of the model alone, with all weights in one file, which comes last.

        If a method of the user's wrote the model's files, they are copied as they are.
        """
        if any(path.startswith(f"{PREFIX}{MODEL}") and is_run_file(path) for path in self.files):
            yield from (File(path, self.read(path)) for path in self.files if not is_run_file(path))
            return
        for path in self.files:
            if not is_run_file(path) and not is_weights(path) and path != f"{MODEL}.json":
                yield File(path, self.read(path))
        yield from files_of(MODEL, self.parts(MODEL), sys.maxsize)


def is_run_file(path: str) -> bool:
    """Return whether a file contains state of the run, and not the model, written by one process or by several."""
    return path in (RUN_STATE, RUN_SETUP, TRAINER_STATE) or _RUN_FILE.fullmatch(path) is not None


def load_model_weights(model: torch.nn.Module, checkpoint: CheckpointFiles) -> None:
    """Load the weights of a checkpoint into a model. Raises CheckpointError if they are another model's."""
    from hexloop.adapters.trainable.torch.model_state import ModelState

    CheckpointContents({MODEL: ModelState(model)}).restore_weights(checkpoint.files, checkpoint.read)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype for a dtype name of safetensors, such as "BF16"."""
    from hexloop.adapters.trainable.torch.serialization import TYPES

    return TYPES[name]


def _order(path: str) -> tuple[bool, bool, bool, str]:
    """Sort the model first, then the optimizer, and the run state last."""
    return not is_weights(path), not path.startswith(("optimizer.", "optimizer-")), path == RUN_STATE, path
