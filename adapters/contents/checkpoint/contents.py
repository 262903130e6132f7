"""What a checkpoint and a run are compared by, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from hexloop.adapters.contents.checkpoint.documents import (
    MIGRATIONS,
    Migrations,
    document_file,
    read_document,
    state_from_chunks,
    state_to_bytes,
)
from hexloop.adapters.contents.checkpoint.rank_files import ONE_RANK, RankFiles
from hexloop.adapters.contents.checkpoint.safetensors_files import (
    MODEL,
    Stream,
    dealt_files,
    is_weights,
    join,
    tensor_file,
    tensor_of_part,
    tensor_parts,
    tensor_paths,
    weight_files,
    weight_paths,
)
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.state import RunState
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File
from hexloop.ports.snapshots import Snapshots
from hexloop.ports.state import JSON, Exportable, Part

RUN_STATE = "run_state.json"

RUN_SETUP = "run_setup.json"


def _no_files() -> Iterable[File]:
    return ()


class CheckpointContents:
    """Answers the Contents port for a RunState.

    exportables: whoever keeps something between steps, by name; the model under "model". An exportable's tensors become
    `<name>.safetensors`, its JSON documents `<name>.json`; the weights are split above `max_shard_size` bytes.
    The state becomes `run_state.json`.
    extra_files: more files that the folder is to hold, such as a model's configuration; they are never read back, and
    one that has the name of another file of the checkpoint is left out.
    snapshots: the memory that a snapshot is kept in.
    setup: what the run is compared with a checkpoint by; its document becomes `run_setup.json`.
    ranks: the process among those of the run, and what each of them keeps for itself. The first writes the rest.
    migrations: how documents of earlier schema versions are read.
    written: the names of those that are saved, where not all are. The others go on from a checkpoint that holds them
    all the same, and begin anew from one that does not.
    """

    def __init__(
        self,
        exportables: Mapping[str, Exportable],
        extra_files: Callable[[], Iterable[File]] = _no_files,
        max_shard_size: int = 5_000_000_000,
        snapshots: Snapshots | None = None,
        setup: Setup | None = None,
        ranks: RankFiles = ONE_RANK,
        migrations: Migrations = MIGRATIONS,
        written: Collection[str] | None = None,
    ) -> None:
        self._exportables = exportables
        self._extra_files = extra_files
        self._max_shard_size = max_shard_size
        self._snapshots = snapshots
        self._setup = setup or AnySetup()
        self._ranks = ranks
        self._migrations = migrations
        self._written = exportables.keys() if written is None else frozenset(written)

    def files(self, state: RunState) -> Iterator[File]:
        """Every file; see `Contents.files`.

        What is dealt out comes together before anything is written, so that no process waits for one whose storage
        fails. The extra files come first, as making them may draw random numbers.
        """
        dealt = self._dealt()

        def files() -> Iterator[File]:
            yield from self._companions()
            for name, parts in dealt.items():
                yield from self._exported(name, parts)
            for name, exportable in self._kept().items():
                yield from self._exported(name, list(exportable.export()))
            yield from self._documents(state)

        return files()

    def prepare(self) -> Callable[[], None]:
        """Make room for everything that is exported now; see `Contents.prepare`."""
        if self._snapshots is None:
            return lambda: None
        return self._snapshots.reserve({name: list(each.export()) for name, each in self._kept().items()})

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Keep everything as it is now; see `Contents.snapshot`."""
        if self._snapshots is None:
            raise CheckpointError("A snapshot needs memory to be kept in; construct CheckpointContents with snapshots.")
        take = self._snapshots.take
        companions = [File(file.path, [bytes(chunk) for chunk in file.chunks]) for file in self._companions()]
        exported = self._dealt()
        exported |= {name: take(name, exportable.export()) for name, exportable in self._kept().items()}
        documents = list(self._documents(state))

        def files() -> Iterator[File]:
            yield from companions
            for name, parts in exported.items():
                yield from self._exported(name, parts)
            yield from documents

        return files

    def restore(self, names: Collection[str], open_file: OpenFile) -> RunState:
        """Load everything; see `Contents.restore`.

        All files are opened, and everything that can be compared is, before anything is loaded. What an exportable
        finds wrong by itself, in its `load`, comes after those before it have loaded, in their order; the model is the
        last, so that its weights are in force only where everything else is.
        """
        if RUN_STATE not in names:
            raise CheckpointError(
                f"The checkpoint holds no {RUN_STATE}, so no run can go on from it; load its weights."
            )
        state = state_from_chunks(open_file(RUN_STATE))
        setup = read_document(RUN_SETUP, names, open_file, self._migrations)
        found = {name: self._parts_of(name, names, open_file) for name in self._exportables}
        self._refuse(list(self._setup.differences(setup, state, found[MODEL])))
        if MODEL not in self._ranks.dealt:  # elsewhere looking takes as long as saving, and the setup has looked
            self._refuse_other_shapes(found[MODEL])
        left_new = {*self._setup.left_new(setup), *self._not_saved(found)}
        for name in sorted(found.keys() - left_new, key=self._order):
            if found[name] or not self._ranks.is_own(name):
                self._load(name, found[name])
        self._setup.settle(setup, state)
        return state

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Load the model alone; see `Contents.restore_weights`."""
        self._load(MODEL, parts_of(MODEL, names, open_file, self._migrations))

    def _companions(self) -> Iterator[File]:
        """The extra files that have no name of the checkpoint's own; the first process writes them.

        Where no process has the whole model, all of them make the files: whoever writes weights needs those of all.
        """
        if self._ranks.rank != 0:
            if MODEL in self._ranks.dealt or self._ranks.is_own(MODEL):
                list(self._extra_files())
            return iter(())
        kept = (f"{name}{suffix}" for name in self._exportables for suffix in (".safetensors", ".json"))
        own = {RUN_STATE, RUN_SETUP, *kept}
        return (file for file in self._extra_files() if file.path not in own and not is_weights(file.path))

    def _not_saved(self, found: Mapping[str, list[Part]]) -> Collection[str]:
        """Those that this run does not save, where the checkpoint that it goes on from was saved that way, too."""
        further = self._exportables.keys() - self._written
        return () if any(found[name] for name in further) else further

    def _dealt(self) -> dict[str, list[Part]]:
        """What falls to this process, in host memory, of what is dealt out. Collective."""
        return {
            name: list(each.export())
            for name, each in self._exportables.items()
            if name in self._ranks.dealt and name in self._written
        }

    def _kept(self) -> dict[str, Exportable]:
        """Whoever keeps something of which this process writes all."""
        return {
            name: each
            for name, each in self._exportables.items()
            if name not in self._ranks.dealt and name in self._written and self._ranks.writes(name)
        }

    def _exported(self, name: str, parts: list[Part]) -> Iterator[File]:
        if name in self._ranks.dealt:
            rank, writers = self._ranks.rank, self._ranks.writers(name)
            return dealt_files_of(name, parts, self._max_shard_size, self._migrations, rank, writers)
        return files_of(self._ranks.file_name(name), parts, self._max_shard_size, self._migrations)

    def _parts_of(self, name: str, names: Collection[str], open_file: OpenFile) -> list[Part]:
        found: list[Part] = []
        for each in self._ranks.files_read(name, names):
            found += parts_of(each, names, open_file, self._migrations)
        return found

    def _documents(self, state: RunState) -> Iterator[File]:
        """How the run is set up, and last where it stands; the same for all processes."""
        if self._ranks.rank != 0:
            return
        if setup := self._setup.document():
            yield document_file(RUN_SETUP, setup, self._migrations)
        yield File(RUN_STATE, [state_to_bytes(state)])

    def _order(self, name: str) -> tuple[bool, int]:
        """The model comes last, the others as they were given."""
        return name == MODEL, list(self._exportables).index(name)

    def _load(self, name: str, parts: list[Part]) -> None:
        try:
            self._exportables[name].load(iter(parts))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            # The parts were written by anybody: one that is not what a keeper takes it for ends here, too.
            said = error if isinstance(error, ValueError) else repr(error)
            raise CheckpointError(f"The checkpoint's {name} does not fit this run: {said}") from error

    @staticmethod
    def _refuse(problems: list[str]) -> None:
        if len(problems) == 1:
            raise CheckpointError(f"The checkpoint does not fit this run: {problems[0]}")
        if problems:
            listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
            raise CheckpointError(f"The checkpoint does not fit this run in {len(problems)} ways:{listed}")

    def _refuse_other_shapes(self, saved: list[Part]) -> None:
        """Raise CheckpointError where a tensor of the model has another shape in the checkpoint."""
        present = {part.name: part.shape for part in self._exportables[MODEL].export()}
        differing = [
            f"{part.name} is of shape {part.shape} there and {present[part.name]} here"
            for part in saved
            if part.name in present and part.dtype != JSON and part.shape != present[part.name]
        ]
        if differing:
            raise CheckpointError(f"The checkpoint is of another model: {'; '.join(differing)}.")


class Setup(Protocol):
    """How a run is set up, and what of it may be otherwise in a checkpoint that it goes on from."""

    def document(self) -> Mapping[str, Any]:
        """What goes into `run_setup.json`: a JSON object."""
        ...

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterable[str]:
        """Why this run cannot go on from a checkpoint with that document (empty where it has none), state and weights.

        Each is a whole sentence; what the user accepts is not among them. Nothing is changed.
        """
        ...

    def left_new(self, saved: Mapping[str, Any]) -> Collection[str]:
        """The names of those who are not to load what the checkpoint holds of them."""
        ...

    def settle(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Everything is loaded: fit what was loaded, and `state`, to what differs."""
        ...


class AnySetup:
    """Nothing is written, and nothing compared."""

    def document(self) -> Mapping[str, Any]:
        """Nothing, so that there is no such file."""
        return {}

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterable[str]:
        """Any checkpoint will do."""
        return ()

    def left_new(self, saved: Mapping[str, Any]) -> Collection[str]:
        """Everybody loads."""
        return ()

    def settle(self, saved: Mapping[str, Any], state: RunState) -> None:
        """There is nothing to fit."""


def files_of(name: str, parts: list[Part], max_shard_size: int, migrations: Migrations = MIGRATIONS) -> Iterator[File]:
    """The files of the keeper `name`; none where it keeps nothing. The weights are split above `max_shard_size`."""
    tensors = join(part for part in parts if part.dtype != JSON)
    values = {part.name: json_value(part) for part in parts if part.dtype == JSON}
    if name == MODEL:
        yield from weight_files(tensors, max_shard_size)
    elif tensors:
        yield tensor_file(f"{name}.safetensors", tensors)
    if values:
        yield document_file(f"{name}.json", values, migrations)


def dealt_files_of(
    name: str, parts: list[Part], max_shard_size: int, migrations: Migrations, rank: int, writers: int
) -> Iterator[File]:
    """The files that a process writes of a keeper whose tensors are dealt out to so many; the first also writes the
    documents.

    The parts that fall to others hold nothing.
    """
    tensors = [tensor_of_part(part) for part in parts if part.dtype != JSON]
    yield from dealt_files(name, tensors, max_shard_size, rank, writers)
    values = {part.name: json_value(part) for part in parts if part.dtype == JSON}
    if values and rank == 0:
        yield document_file(f"{name}.json", values, migrations)


def parts_of(name: str, names: Collection[str], open_file: OpenFile, migrations: Migrations = MIGRATIONS) -> list[Part]:
    """The parts that a checkpoint holds of the keeper `name`, whose tensors are not read yet.

    Raises CheckpointError where a file is not what its name says, or of a newer schema version.
    """
    paths = weight_paths(names, open_file) if name == MODEL else tensor_paths(name, names)
    stream = Stream(open_file)
    parts = [part for path in paths for part in tensor_parts(stream, path)]
    values = read_document(f"{name}.json", names, open_file, migrations)
    return parts + [json_part(part, value) for part, value in values.items()]
