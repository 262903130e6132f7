"""The files of a checkpoint: the run state, and the exported state of each component."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import field, frozen

from hexloop.adapters.contents.adapter_files import model_files, model_parts, model_paths, placed
from hexloop.adapters.contents.documents import encode, encode_parts, encode_state
from hexloop.adapters.contents.file_names import RANKS_OWN, Inheritance, RankFiles, UserFiles, own_files, renamed
from hexloop.adapters.contents.run_documents import OPTIMIZER, SETUP, STATE, RunDocuments, documents_file
from hexloop.adapters.contents.safetensors_files import (
    MODEL,
    TENSORS,
    Stream,
    is_weights,
    join,
    size_by_header,
    tensor_file,
    tensor_files,
    tensor_of_part,
    tensor_parts,
    tensor_paths,
)
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part
from hexloop.domain.run_folder import RUN_STATE
from hexloop.domain.state import RunState
from hexloop.domain.wording import listed, troubleshooting
from hexloop.ports.state import JSON, Exportable, Part, Snapshots
from hexloop.ports.storage import File, OpenFile

EMA = "ema"
"""The component that is a second model, with averages of the weights, in a folder of this name."""

MOST_FILES = 3
"""Files that a message lists."""


class Setup(Protocol):
    """How a run is set up, and what of it may differ from the checkpoint that it resumes: by default, everything."""

    def document(self) -> Mapping[str, Any]:
        """Return the JSON object to write as the document `run_setup`. Also called by the thread that writes files."""
        ...

    def check(self, saved: Mapping[str, Any], where: str) -> None:
        """Raise CheckpointError, with every problem, if that is not the document of such a run. where: names it."""
        return

    def prepare(self, state: RunState) -> None:
        """Give the optimizer the parameter groups that joined it before the checkpoint. Called before `differences`.

        Raises CheckpointError if this run cannot have them.
        """
        return

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterable[str]:
        """Return why this run cannot resume the checkpoint with that document, state and weights. Must not change
        anything.

        Each reason is a whole sentence; differences that the user accepted are not included.
        saved: empty if the checkpoint has no such document.
        """
        return ()

    def not_loaded(self, saved: Mapping[str, Any]) -> Collection[str]:
        """Return the names of the components that must not be loaded from the checkpoint."""
        return ()

    def keep_options(self, saved: Mapping[str, Any]) -> None:
        """Give the loaded optimizer the options of this run. Called after the optimizer is loaded."""
        return

    def adapt(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Adapt what was loaded, and `state`, to the differences. Called after everything is loaded."""
        return


@frozen
class AnySetup(Setup):
    """Setup that accepts every checkpoint, and writes the given document."""

    _document: Mapping[str, Any] = field(factory=dict)

    def document(self) -> Mapping[str, Any]:
        """Return the document."""
        return self._document


@frozen(eq=False)
class CheckpointContents:
    """Contents adapter for a RunState.

    exportables: the components with state, by name; the model is "model". The tensors of a component are written to
    `<name>.safetensors`; the model's weights are split into files of at most `max_shard_size` bytes. The JSON documents
    of all components and the run state are written to one file, `run_state.json`.

    extra_files: further files for the folder, such as the model's configuration. They are never read back, and skipped
    if their name collides with another file of the checkpoint.

    snapshots: copies the state for saving in the background; required by `snapshot`.
    setup: compares the run with a checkpoint before it is loaded; its document is written beside the run state.
    ranks: this process among those of the run, and which files it reads and writes.
    user_files: returns what an overridden method of the user's writes into the checkpoint. Collective.
    written: the names of the components to save, by default all. The others are still loaded from a checkpoint that has
    them, and start fresh otherwise. best: those that `restore_weights` loads.
    """

    _exportables: Mapping[str, Exportable]
    _extra_files: Callable[[], Iterable[File]] = tuple
    _max_shard_size: int = 5_000_000_000
    _snapshots: Snapshots | None = None
    _setup: Setup = AnySetup()
    _ranks: RankFiles = field(factory=RankFiles)
    _written: Collection[str] | None = None
    _user_files: Callable[[], UserFiles] = UserFiles
    _best: Sequence[str] = (MODEL,)

    @property
    def loads_together(self) -> bool:
        """Whether some state is sharded."""
        return bool(self._ranks.sharded)

    def files(self, state: RunState) -> Iterator[File]:
        """Return every file; see `Contents.files`.

        Sharded state is gathered before anything is written, so that no process waits for one whose storage fails. The
        extra files come first, because creating them may draw random numbers.
        """
        sharded = self._sharded()

        def files() -> Iterator[File]:
            users, documents = self._user_files(), self._documents(state) | self._setup_document()
            try:
                yield from self._companion_files(users)
                for name, parts in sharded.items():
                    yield from self._exported(name, parts, users, documents)
                for name, exportable in self._whole().items():
                    yield from self._exported(name, list(exportable.export()), users, documents)
                yield documents_file(documents, self._ranks.number)
            finally:
                users.close()

        return files()

    def sizes(self, state: RunState) -> Iterator[tuple[str, int]]:
        """Return the name and the bytes of every file, without reading the values of tensors. Collective."""
        for file in self.files(state):
            chunks = iter(file.chunks)
            if file.path.endswith(TENSORS):
                yield file.path, size_by_header(next(chunks))
            else:
                yield file.path, sum(map(len, chunks))

    def prepare(self) -> Callable[[], None]:
        """Return a function that allocates memory for the first snapshot; see `Contents.prepare`."""
        if self._snapshots is None:
            return lambda: None
        return self._snapshots.reserve({name: list(each.export()) for name, each in self._whole().items()})

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Copy the current state; see `Contents.snapshot`."""
        if self._snapshots is None:
            raise CheckpointError(
                "A snapshot requires memory for the copies; construct CheckpointContents with snapshots=...."
            )
        take = self._snapshots.take
        users = self._user_files().in_memory()
        companions = [File(file.path, [bytes(chunk) for chunk in file.chunks]) for file in self._companion_files(users)]
        exported = self._sharded()
        exported |= {name: take(name, exportable.export()) for name, exportable in self._whole().items()}
        of_run = self._documents(state)

        def files() -> Iterator[File]:
            documents = of_run | self._setup_document()
            yield from companions
            for name, parts in exported.items():
                yield from self._exported(name, parts, users, documents)
            yield documents_file(documents, self._ranks.number)

        return files

    def restore(self, names: Collection[str], open_file: OpenFile) -> RunState:
        """Load everything; see `Contents.restore`.

        All files are opened and all possible comparisons made before anything is loaded. If a component rejects its
        state in `load`, those before it have loaded already. The model is loaded last, so that its weights change only
        if everything else was loaded.
        """
        if RUN_STATE not in names:
            raise CheckpointError(
                f"The checkpoint has no {RUN_STATE}, so no run can resume from it; load only its weights."
            )
        documents = RunDocuments(names, open_file)
        state, setup = documents.state(), documents.read(SETUP)
        self._setup.check(setup, f"{SETUP} in {documents.path_of(SETUP)}")
        self._setup.prepare(state)
        found = {name: self._parts_of(name, names, open_file, documents) for name in self._exportables}
        self._refuse(list(self._setup.differences(setup, state, found[MODEL])))
        # Exporting a sharded model takes as long as saving it; there the setup compares the shapes.
        if MODEL not in self._ranks.sharded:
            self._refuse_other_shapes(found[MODEL])
        not_loaded = {*self._setup.not_loaded(setup), *self._not_saved(found)}
        for name in sorted(found, key=lambda name: name == MODEL):
            if name not in not_loaded and (found[name] or name not in RANKS_OWN):
                load = self._load_model if name == MODEL else partial(self._load, name)
                load(found[name], self._files_of(name, names, documents))
        if OPTIMIZER in found and OPTIMIZER not in not_loaded:
            self._setup.keep_options(setup)
        self._setup.adapt(setup, state)
        return state

    def restore_components(self, components: Collection[str], names: Collection[str], open_file: OpenFile) -> None:
        """Load some components of a checkpoint that `restore` has compared with the run and left out.

        Raises CheckpointError if the state does not fit.
        """
        documents = RunDocuments(names, open_file)
        for name in components:
            parts = self._parts_of(name, names, open_file, documents)
            if parts or name not in RANKS_OWN:
                self._load(name, parts, self._files_of(name, names, documents))
            if name == OPTIMIZER:
                self._setup.keep_options(documents.read(SETUP))

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Load only the model; see `Contents.restore_weights`."""
        self._load_model(parts_of(MODEL, names, open_file), model_paths(names))
        for name in self._best:
            if name != MODEL:
                self._load(name, parts_of(name, names, open_file), _paths_below(name, names))

    def _companion_files(self, users: UserFiles) -> Iterator[File]:
        """Yield the user's files and the extra files, without those whose name the user's or the checkpoint's own have.

        Each process writes its own files of the user's; rank 0 writes the others.
        If no process holds the whole model, all processes create the files, because creating them may gather weights.
        """
        if self._ranks.rank != 0:
            if MODEL in self._ranks.sharded:
                list(self._extra_files())
            yield from users.beside(())
            return
        users.refuse_reserved(self._exportables)
        paths = (f"{name}{suffix}" for name in self._exportables for suffix in (".safetensors", ".json"))
        own, written = {RUN_STATE, *paths}, set[str]()
        for file in self._extra_files():
            if file.path not in own and not is_weights(file.path) and file.path not in users.names:
                written.add(file.path)
                yield file
        yield from users.beside(written)

    def _not_saved(self, found: Mapping[str, list[Part]]) -> Collection[str]:
        """Return the components that this run does not save, if the checkpoint was saved without them too."""
        further = [name for name in self._exportables if not self._saves(name)]
        return () if any(found[name] for name in further) else further

    def _saves(self, name: str) -> bool:
        return self._written is None or name in self._written

    def _sharded(self) -> dict[str, list[Part]]:
        """Return this process's share of the sharded state, in host memory. Collective."""
        return {
            name: list(self._exportables[name].export())
            for name in self._exportables
            if name in self._ranks.sharded and self._saves(name)
        }

    def _whole(self) -> dict[str, Exportable]:
        """Return the components whose whole state this process writes."""
        return {
            name: each
            for name, each in self._exportables.items()
            if name not in self._ranks.sharded and self._saves(name) and self._ranks.writes(name)
        }

    def _exported(self, name: str, parts: list[Part], users: UserFiles, documents: dict[str, bytes]) -> Iterator[File]:
        """Return the files with the tensors of a component, and add its document, if it has one, to `documents`."""
        rank, sharded = self._ranks.rank, name in self._ranks.sharded
        if (rank == 0 or not sharded) and (document := encode_parts(name, documents_of(parts))):
            documents[name] = document
        if sharded:
            files = sharded_files_of(name, parts, self._max_shard_size, rank, self._ranks.writers(name))
        else:
            files = files_of(self._ranks.file_name(name), parts, self._max_shard_size)
        if not users.take_names_of(name):
            return files
        if self._are_held(name, parts, users):
            return iter(())
        if name == MODEL:  # beside the user's, adapters are in the files of a whole model, under their long names
            held = [part for part in parts if part.dtype != JSON]
            tensors = [tensor_of_part(part) for part in held] if sharded else join(held)
            writers = self._ranks.writers(name) if sharded else 1
            files = tensor_files(MODEL, tensors, self._max_shard_size, rank if sharded else 0, writers)
        return map(renamed, files)

    def _are_held(self, name: str, parts: list[Part], users: UserFiles) -> bool:
        """Return whether the user's files hold the model's tensors, so that they need not be written again."""
        if name != MODEL or name in self._ranks.sharded:
            return False
        return users.hold([part for part in parts if part.dtype != JSON])

    def _parts_of(self, name: str, names: Collection[str], open_file: OpenFile, documents: RunDocuments) -> list[Part]:
        own_names, _ = own_files(name, names, open_file)
        read = self._ranks.files_read(name, {*own_names, *names})
        parts = [part for each in read for part in parts_of(each, names, open_file, documents)]
        if not parts and RANKS_OWN.get(name) is Inheritance.OWN_OR_FIRST:
            return parts_of(name, names, open_file, documents)
        return parts

    def _documents(self, state: RunState) -> dict[str, bytes]:
        """Return the run state as a document. Rank 0 writes it."""
        return {STATE: encode_state(state)} if self._ranks.rank == 0 else {}

    def _setup_document(self) -> dict[str, bytes]:
        """Return the run setup as a document, for which a snapshot does not wait. Rank 0 writes it."""
        setup = self._setup.document() if self._ranks.rank == 0 else {}
        return {SETUP: encode(SETUP, setup)} if setup else {}

    def _files_of(self, name: str, names: Collection[str], documents: RunDocuments) -> list[str]:
        """Return the files that this process reads a component from."""
        if name == MODEL:
            return model_paths(names)
        if name == EMA:
            return _paths_below(name, names)
        found = [documents.path_of(each) for each in self._ranks.files_read(name, names)]
        return [path for path in dict.fromkeys(found) if path in names] + tensor_paths(name, names)

    def _load_model(self, parts: list[Part], files: Sequence[str]) -> None:
        """Load the weights: all of them are read before any changes, unless no process has them all."""
        self._load(MODEL, parts if MODEL in self._ranks.sharded else [_read(part) for part in parts], files)

    def _load(self, name: str, parts: list[Part], files: Sequence[str]) -> None:
        """Load a component. files: those that it was read from, for messages."""
        try:
            self._exportables[name].load(iter(parts))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            # The file may come from anyone: a part of an unexpected kind is reported like an unexpected value.
            reason = str(error) if isinstance(error, ValueError) else repr(error)
            lacks = (
                f" The checkpoint has no {name}, because it was saved with save_only_model=True; set that in this run "
                "too, to continue from its weights alone."
            )
            more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
            source = f" It was read from {', '.join(files[:MOST_FILES])}{more}." if parts else lacks
            raise CheckpointError(
                f"The checkpoint's {name} does not fit this run: {reason.rstrip('.')}.{source}"
            ) from error

    @staticmethod
    def _refuse(problems: list[str]) -> None:
        advice = f"For help, {troubleshooting('resume refused')}."
        if len(problems) == 1:
            raise CheckpointError(f"The checkpoint does not fit this run: {problems[0]} {advice}")
        if problems:
            listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
            raise CheckpointError(f"The checkpoint does not fit this run in {len(problems)} ways:{listed}\n{advice}")

    def _refuse_other_shapes(self, saved: list[Part]) -> None:
        """Raise CheckpointError if a tensor of the model has another shape in the checkpoint."""
        present = {part.name: part.shape for part in self._exportables[MODEL].export()}
        differing = [
            f"{part.name} has shape {part.shape} in the checkpoint and {present[part.name]} in this run"
            for part in saved
            if part.name in present
            and part.dtype != JSON
            and part.shape != present[part.name]
            and placed(part.name) is None  # what PEFT's files hold may be computed, and has another shape then
        ]
        if differing:
            raise CheckpointError(f"The checkpoint is of another model: {listed(differing)}.")


def _read(part: Part) -> Part:
    """Return a part that was read."""
    data = part.read()
    return Part(part.name, part.dtype, part.shape, part.offset, part.length, lambda: data, fresh=part.fresh)


def files_of(name: str, parts: list[Part], max_shard_size: int) -> Iterator[File]:
    """Yield the files with the tensors of a component. Weights are split above `max_shard_size` bytes."""
    if name == MODEL:
        yield from model_files(parts, max_shard_size)
    elif name == EMA:
        yield from _files_below(name, model_files(parts, max_shard_size))
    elif tensors := join(part for part in parts if part.dtype != JSON):
        yield tensor_file(f"{name}.safetensors", tensors)


def sharded_files_of(name: str, parts: list[Part], max_shard_size: int, rank: int, writers: int) -> Iterator[File]:
    """Yield the files that one process writes of a component whose tensors are assigned to `writers` processes.

    Parts that are assigned to other processes are empty.
    """
    if name == MODEL:
        yield from model_files(parts, max_shard_size, rank, writers)
        return
    if name == EMA:
        yield from _files_below(name, model_files(parts, max_shard_size, rank, writers))
        return
    tensors = [tensor_of_part(part) for part in parts if part.dtype != JSON]
    yield from tensor_files(name, tensors, max_shard_size, rank, writers)


def _files_below(folder: str, files: Iterable[File]) -> Iterator[File]:
    """Return the files in a folder of the checkpoint."""
    return (File(f"{folder}/{file.path}", file.chunks) for file in files)


def _paths_below(folder: str, names: Collection[str]) -> list[str]:
    """Return the files of the model in a folder of the checkpoint."""
    found = [name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")]
    return [f"{folder}/{name}" for name in model_paths(found)]


def documents_of(parts: Iterable[Part]) -> list[Part]:
    """Return the parts that are JSON documents."""
    return [part for part in parts if part.dtype == JSON]


def parts_of(
    name: str, names: Collection[str], open_file: OpenFile, documents: RunDocuments | None = None
) -> list[Part]:
    """Return the parts of the component `name` in a checkpoint; their tensors are read later.

    documents: those of the checkpoint, if some of them were read already.
    Raises CheckpointError if a file is invalid or of a newer schema version.
    """
    documents = RunDocuments(names, open_file) if documents is None else documents
    values, all_names = documents.read(name), names
    names, open_file = own_files(name, names if name == MODEL else documents.names_of(name), open_file)
    if name == MODEL:
        parts = model_parts(names, open_file)
    elif name == EMA:
        parts = _parts_below(name, all_names, open_file)
    else:
        stream = Stream(open_file)
        parts = [part for path in tensor_paths(name, names) for part in tensor_parts(stream, path)]
    return parts + [json_part(part, value) for part, value in values.items()]


def _parts_below(folder: str, names: Collection[str], open_file: OpenFile) -> list[Part]:
    """Return the tensors of a model in a folder of a checkpoint; none if there is no model in it."""
    found = [name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")]

    def open_below(path: str, start: int = 0, /) -> Iterator[memoryview]:
        return open_file(f"{folder}/{path}", start)

    return model_parts(found, open_below) if model_paths(found) else []
