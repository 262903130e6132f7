"""The files of a checkpoint: the run's state, and whatever its parts export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from hexloop.adapters.contents.checkpoint import documents, state_codec
from hexloop.adapters.contents.checkpoint.shards import is_weights, weight_files, weight_paths
from hexloop.adapters.contents.checkpoint.stream import Stream
from hexloop.adapters.contents.checkpoint.tensors import join, tensor_file, tensor_parts
from hexloop.domain.errors import CheckpointError
from hexloop.domain.parts import json_part, json_value
from hexloop.domain.state import RunState
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File
from hexloop.ports.snapshots import Snapshots
from hexloop.ports.state import JSON, Exportable, Part

MODEL = "model"
RUN_STATE = "run_state.json"


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
    """

    def __init__(
        self,
        exportables: Mapping[str, Exportable],
        extra_files: Callable[[], Iterable[File]] = _no_files,
        max_shard_size: int = 5_000_000_000,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._exportables = exportables
        self._extra_files = extra_files
        self._max_shard_size = max_shard_size
        self._snapshots = snapshots

    def files(self, state: RunState) -> Iterator[File]:
        """Every file; see `Contents.files`. The extra ones come first, as making them may draw random numbers."""
        yield from self._companions()
        for name, exportable in self._exportables.items():
            yield from self._exported(name, list(exportable.export()))
        yield File(RUN_STATE, [state_codec.to_bytes(state)])

    def prepare(self) -> Callable[[], None]:
        """Make room for everything that is exported now; see `Contents.prepare`."""
        if self._snapshots is None:
            return lambda: None
        return self._snapshots.reserve({name: list(each.export()) for name, each in self._exportables.items()})

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Keep everything as it is now; see `Contents.snapshot`."""
        if self._snapshots is None:
            raise CheckpointError("A snapshot needs memory to be kept in; construct CheckpointContents with snapshots.")
        take = self._snapshots.take
        small = [File(file.path, [bytes(chunk) for chunk in file.chunks]) for file in self._companions()]
        exported = {name: take(name, exportable.export()) for name, exportable in self._exportables.items()}
        small.append(File(RUN_STATE, [state_codec.to_bytes(state)]))

        def files() -> Iterator[File]:
            yield from small[:-1]
            for name, parts in exported.items():
                yield from self._exported(name, parts)
            yield small[-1]

        return files

    def restore(self, names: Collection[str], open_file: OpenFile) -> RunState:
        """Load everything; see `Contents.restore`.

        All files are opened and the weights' shapes compared first. What an exportable finds wrong by itself, in its
        `load`, comes after those before it have loaded: the model first, the others in their order.
        """
        if RUN_STATE not in names:
            raise CheckpointError(
                f"The checkpoint holds no {RUN_STATE}, so no run can go on from it; load its weights."
            )
        state = state_codec.from_bytes(b"".join(open_file(RUN_STATE)))
        found = {name: self._saved(name, names, open_file) for name in self._exportables}
        self._refuse_other_shapes(found[MODEL])
        for name in sorted(found, key=MODEL.__ne__):
            self._load(name, found[name])
        return state

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Load the model alone; see `Contents.restore_weights`."""
        self._load(MODEL, self._saved(MODEL, names, open_file))

    def _companions(self) -> Iterator[File]:
        """The extra files that have no name of the checkpoint's own."""
        own = {RUN_STATE, *(f"{name}{suffix}" for name in self._exportables for suffix in (".safetensors", ".json"))}
        return (file for file in self._extra_files() if file.path not in own and not is_weights(file.path))

    def _exported(self, name: str, parts: list[Part]) -> Iterator[File]:
        tensors = join(part for part in parts if part.dtype != JSON)
        values = {part.name: json_value(part) for part in parts if part.dtype == JSON}
        if name == MODEL:
            yield from weight_files(tensors, self._max_shard_size)
        elif tensors:
            yield tensor_file(f"{name}.safetensors", tensors)
        if values:
            yield File(f"{name}.json", [documents.to_bytes(values)])

    def _saved(self, name: str, names: Collection[str], open_file: OpenFile) -> list[Part]:
        """The parts that a checkpoint holds of an exportable, whose tensors are not read yet."""
        paths = weight_paths(names, open_file) if name == MODEL else [f"{name}.safetensors"]
        parts = [part for path in paths if path in names for part in tensor_parts(_stream(open_file, path), path)]
        path = f"{name}.json"
        if path in names:
            values = documents.from_bytes(b"".join(open_file(path)))
            if not isinstance(values, dict):
                raise CheckpointError(f"{path} is not a JSON object.")
            parts += [json_part(part, value) for part, value in values.items()]
        return parts

    def _load(self, name: str, parts: list[Part]) -> None:
        try:
            self._exportables[name].load(iter(parts))
        except ValueError as error:
            raise CheckpointError(f"The checkpoint's {name} does not fit this run: {error}") from error

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


def _stream(open_file: OpenFile, path: str) -> Stream:
    return Stream(lambda: open_file(path))
