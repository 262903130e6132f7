"""The names of a checkpoint's files: which process of a run reads and writes which, and which names the user has taken.

What a method of the user's wrote keeps its name. A component of the run whose files with tensors have such a name, and
the model if the method wrote weights in any format, is written with `hexloop-` before its names, and read from there.
The documents of a run are in files with names of their own; see `run_documents`. hexloop 0.1 wrote a file for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum

from attrs import evolve, field, frozen

from hexloop.adapters.contents.adapter_files import is_adapter_file, model_parts
from hexloop.adapters.contents.safetensors_files import INDEX, MODEL, is_weights
from hexloop.domain.checkpoints.manifest import MANIFEST, marks_unfinished
from hexloop.domain.errors import CheckpointError
from hexloop.ports.mesh import MODEL as MODEL_DIMENSIONS
from hexloop.ports.mesh import Mesh
from hexloop.ports.state import JSON, Part
from hexloop.ports.storage import File, OpenFile


class Inheritance(Enum):
    """Whose file a process reads if the checkpoint was saved by another number of processes.

    DISTRIBUTED: the files of all are distributed over the processes, so that nothing of a sum is lost.
    OWN: its own, if there is one.
    OWN_OR_FIRST: its own, or else that of rank 0.
    """

    DISTRIBUTED = "distributed"
    OWN = "own"
    OWN_OR_FIRST = "own or first"


RANKS_OWN = {"losses": Inheritance.DISTRIBUTED, "random": Inheritance.OWN, "data": Inheritance.OWN_OR_FIRST}
"""The state that every process has for itself."""


@frozen
class RankFiles:
    """Which files one process of a mesh reads and writes. Those of rank 0 have the names of a single process's files.

    sharded: components of which no process holds the whole; each tensor is written by the process it is assigned to.
    gathered: those of them that are gathered on rank 0 nevertheless.
    """

    mesh: Mesh = field(factory=Mesh)
    sharded: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()

    @property
    def rank(self) -> int:
        """The number of this process among all."""
        return self.mesh.rank

    @property
    def number(self) -> int:
        """The number in the names of this process's files: first are the processes that read different samples."""
        return self.mesh.along(*MODEL_DIMENSIONS).rank * self.mesh.data.size + self.mesh.data.rank

    def writes(self, name: str) -> bool:
        """Return whether this process writes the whole state under that name."""
        return self.rank == 0 or name == "random" or (name in RANKS_OWN and self.mesh.leads)

    def writers(self, name: str) -> int:
        """Return how many processes the tensors of sharded state are assigned to."""
        return 1 if name in self.gathered else self.mesh.size

    def file_name(self, name: str) -> str:
        """Return the name, without suffix, of the file that this process writes."""
        return _of_rank(name, self.number)

    def files_read(self, name: str, names: Collection[str]) -> list[str]:
        """Return the names, without suffix, of the files that this process reads among `names`.

        A document of the component that is in one file with others is read under the same name.
        """
        if name not in RANKS_OWN:
            return [name]
        pattern = re.compile(rf"(?:{re.escape(name)}|run_state)-rank-(\d{{5}})\.(?:json|safetensors)")
        saved = sorted({0, *(int(match[1]) for match in map(pattern.fullmatch, names) if match)})
        if RANKS_OWN[name] is Inheritance.DISTRIBUTED:
            return [_of_rank(name, each) for each in saved[self.mesh.data.rank :: self.mesh.data.size]]
        number = self.number if name == "random" else self.mesh.data.rank
        if number in saved:
            return [_of_rank(name, number)]
        return [name] if RANKS_OWN[name] is Inheritance.OWN_OR_FIRST else []


def _of_rank(name: str, rank: int) -> str:
    return name if rank == 0 else f"{name}-rank-{rank:05}"


PREFIX = "hexloop-"
"""Comes before the names of hexloop's own files if the user's method wrote files of these names."""

RESERVED = re.compile(rf"run_state(-rank-\d{{5}})?\.json|run_setup\.json|{re.escape(MANIFEST)}")
"""The files by which a checkpoint is recognized, and those with the documents of a run, which have no other names."""

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".npz", ".onnx")
"""How the names of files with weights end, in the formats that libraries write."""


def _no_file(path: str, start: int = 0, /) -> Iterator[memoryview]:
    raise CheckpointError(f"{path} was not written.")


@frozen
class UserFiles:
    """What the user's methods wrote.

    files: those that this process puts into the checkpoint. open_file: reads one of them.
    names: those that `save_model` or `_save` wrote, in any process.
    earlier: those that `_save_checkpoint` wrote into the checkpoint's folder before it called the method that it
    overrides. As in transformers, the files that this method writes for the model replace those of the same names.
    close: removes the files from where they were written.
    """

    files: Sequence[File] = ()
    open_file: OpenFile = _no_file
    names: frozenset[str] = frozenset()
    earlier: frozenset[str] = frozenset()
    close: Callable[[], None] = field(default=lambda: None)

    def refuse_reserved(self, components: Collection[str]) -> None:
        """Raise CheckpointError for a name that only hexloop's own files may have."""
        own = [
            name
            for name in sorted(self.names | self.earlier)
            if RESERVED.fullmatch(name)
            or marks_unfinished(name)
            or (name.startswith(PREFIX) and any(is_file_of(each, name.removeprefix(PREFIX)) for each in components))
        ]
        if own:
            raise CheckpointError(
                f"An overridden save_model, _save or _save_checkpoint wrote {', '.join(own)}, but the checkpoint needs "
                "that name for a file of hexloop; write it under another name."
            )

    def take_names_of(self, component: str) -> bool:
        """Return whether the component's files with tensors need other names beside these."""
        if component == MODEL and any(name.endswith(WEIGHT_SUFFIXES) for name in self.names):
            return True
        taken = (name for name in self.names | self.earlier if name.endswith(".safetensors") and not is_weights(name))
        return any(is_file_of(component, name) for name in taken)

    def hold(self, tensors: Sequence[Part]) -> bool:
        """Return whether the usual weight files among these hold exactly these tensors, so that no copy is needed."""
        try:
            weights = [name for name in self.names if is_weights(name) or is_adapter_file(name)]
            own, found = {part.name: part for part in tensors}, model_parts(weights, self.open_file)
            return len(found) == len(own) and all(_same(part, own.get(part.name)) for part in found)
        except (CheckpointError, LookupError):  # files of another layout, or of another process
            return False

    def beside(self, own: Collection[str]) -> Iterator[File]:
        """Return the files, without those of `earlier` that hexloop writes, too: the model's, and those named `own`."""
        for file in self.files:
            if file.path in self.names or not (file.path in own or is_weights(file.path) or is_adapter_file(file.path)):
                yield file

    def in_memory(self) -> UserFiles:
        """Return the same with the bytes in memory; nothing is left to close."""
        try:
            data = {file.path: b"".join(map(bytes, file.chunks)) for file in self.files}
        finally:
            self.close()

        def open_file(path: str, start: int = 0, /) -> Iterator[memoryview]:
            yield memoryview(data[path])[start:]

        files = [File(path, [content]) for path, content in data.items()]
        return evolve(self, files=files, open_file=open_file, close=lambda: None)


def is_file_of(component: str, path: str) -> bool:
    """Return whether a file of this name holds state of the component, of one process or of several."""
    if component == MODEL and path == INDEX:
        return True
    parts = r"(-rank-\d{5}|-\d{5}-of-\d{5})?"
    return re.fullmatch(re.escape(component) + parts + r"\.(json|safetensors)", path) is not None


_OF_COMPONENT = re.compile(rf"(?:{PREFIX})?(.+?)(?:-\d{{5}}-of-\d{{5}})?\.(?:json|safetensors)")


def names_by_component(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of files by component, with or without a prefix; that of a process is a component of its own.

    There may be a file for each of many processes, so that a search among all names for each of them would take long.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _OF_COMPONENT.fullmatch(name):
            found.setdefault(match[1], []).append(name)
    return found


def renamed(file: File) -> File:
    """Return one of hexloop's own files with the name that it has beside the user's."""
    if file.path != INDEX:
        return File(PREFIX + file.path, file.chunks)
    index = json.loads(b"".join(map(bytes, file.chunks)))
    index["weight_map"] = {name: PREFIX + path for name, path in index["weight_map"].items()}
    return File(PREFIX + INDEX, [(json.dumps(index, indent=2) + "\n").encode()])


def own_files(component: str, names: Collection[str], open_file: OpenFile) -> tuple[Collection[str], OpenFile]:
    """Return a component's files under the names that they have alone, and what opens them; else everything as it is.

    An index names its shards as they are in the folder, so both names of a file open it.
    """
    own = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
    own = {name for name in own if is_file_of(component, name)}
    if not own:
        return names, open_file

    def open_own(path: str, start: int = 0, /) -> Iterator[memoryview]:
        return open_file(PREFIX + path.removeprefix(PREFIX), start)

    return own | {PREFIX + name for name in own}, open_own


def _same(one: Part, other: Part | None) -> bool:
    if other is None or (one.dtype, one.shape) != (other.dtype, other.shape) or other.dtype == JSON:
        return False
    return one.length == other.length and bytes(one.read()) == bytes(other.read())
