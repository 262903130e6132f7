"""Import of transformers' checkpoints."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from hexloop.adapters.contents import adapter_files
from hexloop.adapters.contents.checkpoint import AnySetup, CheckpointContents, parts_of
from hexloop.adapters.contents.documents import shard_names
from hexloop.adapters.contents.safetensors_files import MODEL, Stream, is_weights, tensor_parts
from hexloop.adapters.device.torch import encode_state
from hexloop.adapters.trainable.torch.adapter_state import DOCUMENT
from hexloop.adapters.trainable.torch.parameter_groups import numbered_parts
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.app.assembly.adapters import cpu_device
from hexloop.app.assembly.storage import storage_for
from hexloop.app.assembly.torch.saved_weights import policy_for_files
from hexloop.app.assembly.torch.transformers_checkpoints.files import (
    ARGUMENTS,
    DEVICE_STREAMS,
    OPTIMIZER,
    RANDOM,
    RANDOM_OF_FIRST,
    SAGEMAKERS,
    SCALER,
    SCHEDULER,
    WEIGHTS,
    WEIGHTS_INDEX,
)
from hexloop.app.assembly.torch.transformers_checkpoints.reading import PickledFiles, open_regular, pickled_files
from hexloop.app.assembly.torch.transformers_checkpoints.trainer_states import run_state
from hexloop.domain.checkpoints.manifest import MANIFEST, checkpoint_name
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import SaveFailed
from hexloop.domain.json_documents import json_part, read_json
from hexloop.domain.limits import limits
from hexloop.domain.run_folder import TRAINER_STATE
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from hexloop.ports.storage import File

COMPANIONS = frozenset({".json", ".txt", ".model", ".jinja", ".vocab", ".md"})
"""Extensions of the files next to a model's weights: its configuration and tokenizer."""

NO_LOSSES = {"sum": 0.0, "finite": 0, "added": 0, "waiting": [], "dtype": "float32"}


def import_checkpoint(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    gradient_accumulation_steps: int = 1,
    processes: int = 1,
    seed: int = 42,
    data_seed: int | None = None,
    train_batch_size: int | None = None,
) -> str:
    """Convert a checkpoint of transformers (version 4 or 5) to `checkpoint-<step>` in the folder `to`.

    Returns the new checkpoint's folder, from which a hexloop run can resume. Weights, optimizer, schedule, loss scale,
    random states and history are imported. `training_args.bin` is not read: pass the run's arguments again.

    Files are read as data only: one that requires code is refused before any of it runs.

    Args:
        folder: the folder of transformers' checkpoint.
        to: the folder that receives `checkpoint-<step>`.
        gradient_accumulation_steps: the micro-batches of a step of the run. A checkpoint does not contain this, nor the
            next three.
        processes: the processes of the run.
        seed: `seed` of the run.
        data_seed: `data_seed` of the run; by default its seed.
        train_batch_size: the micro-batch size per process, which checkpoints of early releases do not contain either.

    Raises:
        CheckpointError: if the folder is not such a checkpoint or cannot be read as data, and if `to` already contains
            a checkpoint of that step.
        StorageError: if it cannot be written.
    """
    source = os.fspath(folder)
    found, seeds = _read_state(source), (seed, seed if data_seed is None else data_seed)
    shares = train_batch_size, gradient_accumulation_steps, processes
    state = run_state(found, os.path.join(source, TRAINER_STATE), *shares, *seeds)
    storage, name = storage_for(to), checkpoint_name(state.step)
    if any(entry.name == name for entry in storage.list("")):
        raise CheckpointError(
            f"You chose to write {name} to {os.fspath(to)}, but it exists already; choose another folder."
        )
    with pickled_files(source, _pickled_names(source)) as pickled:
        components = _components(source, state, pickled)
    exportables = {name: FixedParts(tuple(parts)) for name, parts in components.items()}
    policy = policy_for_files(_files_in(source)).name
    setup = {"imported_from": "transformers", **({"weights": policy} if policy else {})}
    contents = CheckpointContents(exportables, lambda: _companions(source), setup=AnySetup(setup))
    for event in CheckpointStore(storage, contents).save(state):
        if isinstance(event, SaveFailed):
            raise StorageError(
                f"The checkpoint was not written to {storage.capabilities.location}: {event.error}"
            ) from event.error
    return os.path.join(os.fspath(to), name)


@frozen
class FixedParts:
    """State that was exported before, and is only written."""

    parts: tuple[Part, ...]

    def export(self) -> Iterator[Part]:
        """Return the parts."""
        return iter(self.parts)

    def load(self, parts: Iterable[Part]) -> None:
        """Raise TypeError, as these parts are only written."""
        raise TypeError("Imported state is only written; nothing can be loaded into it.")


def _pickled_names(folder: str) -> list[str]:
    """Return the names of the pickled files that an import reads."""
    names = os.listdir(folder)
    random = [name for name in (RANDOM, RANDOM_OF_FIRST) if name in names][:1]
    return [name for name in (OPTIMIZER, SCHEDULER, SCALER) if name in names] + random + pickled_weights(folder, names)


def _components(folder: str, state: RunState, pickled: PickledFiles) -> dict[str, list[Part]]:
    """Return the contents of the folder by the components of a hexloop run."""
    if _has(folder, SAGEMAKERS):
        raise CheckpointError(
            f"You chose to import {folder}, but SageMaker's model parallelism wrote it, with a part of the model for "
            f"each process: it has {SAGEMAKERS}. Save the whole model with SageMaker's library, and load its weights."
        )
    parts = {"model": weight_parts(folder, pickled), "losses": [json_part("undrained", NO_LOSSES)]}
    if not _has(folder, OPTIMIZER) or not _has(folder, SCHEDULER):
        raise CheckpointError(
            f"You chose to import {folder}, but it has no {OPTIMIZER} or no {SCHEDULER}, so no run can resume from it: "
            "it contains only weights, or the state of several processes; load its weights into your model instead."
        )
    optimizer, schedule = pickled.read(OPTIMIZER), pickled.read(SCHEDULER)
    state.updates = _checked(folder, SCHEDULER, lambda: int(schedule["last_epoch"]))
    rates = _checked(folder, OPTIMIZER, lambda: [float(group["lr"]) for group in optimizer["param_groups"]])
    parts["optimizer"] = _checked(folder, OPTIMIZER, lambda: list(numbered_parts(optimizer)))
    parts["scheduler"] = _checked(folder, SCHEDULER, lambda: [_schedule_part(schedule, rates, state)])
    if SCALER in pickled:
        parts["scaler"] = [json_part("scaler", pickled.read(SCALER))]
    parts["random"] = _random_parts(folder, pickled)
    return parts


def _schedule_part(schedule: dict[str, Any], rates: list[float], state: RunState) -> Part:
    """Return the state of hexloop's own schedule, or of a torch scheduler of the user.

    Schedules that are a function of the step only need the number of updates and ignore it.
    """
    state.learning_rate = rates[0]
    if "num_bad_epochs" not in schedule:
        return json_part("scheduler", {"state": schedule, "rates": rates})
    state.updates = state.step
    if "warmup_counter" in schedule:
        raise CheckpointError(
            "The schedule of this checkpoint is the greedy one, whose state cannot be imported; finish the run with "
            "transformers, or start a new one from its weights."
        )
    best = schedule["best"]
    memory = {
        "best": None if best in (float("inf"), float("-inf")) else float(best),
        "num_bad_epochs": int(schedule["num_bad_epochs"]),
        "cooldown_counter": int(schedule["cooldown_counter"]),
    }
    return json_part("adaptive", {"rates": rates, "state": memory, "measured": int(schedule["last_epoch"])})


def _read_state(folder: str) -> Any:
    path = os.path.join(folder, TRAINER_STATE)
    if not os.path.isdir(folder):
        raise CheckpointError(
            f"You chose to import {folder}, which is no folder of this machine; copy the checkpoint here first."
        )
    if not _has(folder, TRAINER_STATE):
        raise CheckpointError(
            f"You chose to import {folder}, but it has no {TRAINER_STATE}; name a checkpoint's folder."
        )
    if _has(folder, MANIFEST):
        raise CheckpointError(
            f"You chose to import {folder}, but that is already a checkpoint of hexloop; resume from it."
        )
    try:
        found = read_json(_bytes_of(folder, TRAINER_STATE), finite=False)  # transformers writes NaN as a bare word
    except ValueError as error:
        raise CheckpointError(f"{path} is not a JSON document: {error}.") from error
    if _has(folder, ARGUMENTS):
        warnings.warn(
            f"{ARGUMENTS} is not loaded, as that would run code: pass the run's arguments again when you resume.",
            stacklevel=3,
        )
    return found


def _companions(folder: str) -> Iterator[File]:
    """Yield the files of the model's configuration and tokenizer, and those of its adapters."""
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in COMPANIONS and not path.name.endswith(".index.json"):
            yield File(path.name, _read(folder, path.name, 0))
    for adapter in adapter_files.adapters_among(_files_in(folder)):
        name = adapter_files.path_of(adapter, adapter_files.CONFIGURATION)
        if "/" in name and _has(folder, name):
            yield File(name, _read(folder, name, 0))


def _has(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def _checked(folder: str, name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise CheckpointError(f"{os.path.join(folder, name)} is invalid: {error!r}.") from error


# Conversion


def _random_parts(folder: str, pickled: PickledFiles) -> list[Part]:
    """Return the random states in a checkpoint's folder as a device exports them.

    If there are none, warn and return the current states.
    """
    name = next((name for name in (RANDOM, RANDOM_OF_FIRST) if name in pickled), None)
    if name is None:
        warnings.warn(f"{folder} has no {RANDOM}, so the current random states are used.", stacklevel=4)
        return list(cpu_device().export())
    if name == RANDOM_OF_FIRST:
        warnings.warn(
            "The checkpoint was written by several processes: only the random states of the first are imported.",
            stacklevel=4,
        )
    found = pickled.read(name)
    streams: list[Part] = _checked(folder, name, lambda: _streams(found))
    return streams


def _streams(found: dict[str, Any]) -> list[Part]:
    version, words, gauss = found["python"]
    kind, keys, position, has_gauss, cached = found["numpy"]
    parts = [
        json_part("python", [version, list(words), gauss]),
        json_part("numpy", [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]),
        json_part("torch", encode_state(found["cpu"])),
    ]
    own: Tensor | list[Tensor] | None = next((found[kind] for kind in DEVICE_STREAMS if kind in found), None)
    if isinstance(own, Tensor):
        return [*parts, json_part("device", encode_state(own))]
    if own is not None:
        parts += [json_part("device", encode_state(own[0])), json_part("devices", [*map(encode_state, own)])]
    return parts


# Weights


def weight_parts(folder: str, pickled: PickledFiles) -> list[Part]:
    """Return the weights, each tensor once, under its first name. Raises CheckpointError if there are none.

    pickled: those of the folder, among them the weights that `pickled_weights` lists.
    """
    names = _files_in(folder)
    if weights := policy_for_files(names).imported(names):
        open_file = partial(_read, folder)
        if any(map(is_weights, weights)):
            return parts_of(MODEL, weights, open_file)
        if any(map(adapter_files.is_adapter_file, weights)):
            return [*adapter_files.model_parts(weights, open_file), _adapters_document(folder, weights)]
        stream = Stream(open_file)
        return [part for path in weights for part in tensor_parts(stream, path)]
    state: dict[str, Any] = {}
    for name in pickled_weights(folder, names):
        shard = pickled.read(name)
        if not isinstance(shard, dict) or not all(isinstance(value, torch.Tensor) for value in shard.values()):
            raise CheckpointError(f"{name} is not a mapping from names to the weights of a model.")
        state |= shard
    return _distinct(state)


def _adapters_document(folder: str, weights: Sequence[str]) -> Part:
    """Return the document with the configurations of the adapters, by their names."""
    found: dict[str, Any] = {}
    for adapter in adapter_files.adapters_among(weights):
        path = adapter_files.path_of(adapter, adapter_files.CONFIGURATION)
        if not _has(folder, path):
            raise CheckpointError(f"{folder} cannot be imported: {path} is missing.")
        try:
            found[adapter] = read_json(_bytes_of(folder, path))
        except ValueError as error:
            raise CheckpointError(f"{os.path.join(folder, path)} is not a JSON document: {error}.") from error
    return json_part(DOCUMENT, {"configurations": found})


def _files_in(folder: str) -> list[str]:
    """Return the files in a folder, and those of adapters in folders of their own. No link is followed."""
    found = []
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            found += [f"{entry.name}/{each.name}" for each in os.scandir(entry) if each.is_file(follow_symlinks=False)]
        else:
            found.append(entry.name)
    return [name for name in found if "/" not in name or adapter_files.is_adapter_file(name)]


def pickled_weights(folder: str, names: list[str]) -> list[str]:
    """Return the pickled files with the weights, if no others have them. Raises CheckpointError if there are none."""
    if policy_for_files(names).imported(names):
        return []
    if WEIGHTS in names:
        return [WEIGHTS]
    if WEIGHTS_INDEX in names:
        return _shards(folder, names)
    raise CheckpointError(
        f"{folder} cannot be imported: it has neither model.safetensors nor {WEIGHTS}, in one file or in shards. "
        "Import a checkpoint with the model's own weights, or with adapters of PEFT; checkpoints of sharded runs are "
        "not supported."
    )


def _distinct(state: dict[str, Tensor]) -> list[Part]:
    """Return a part for each tensor; tied weights, which have several names, are returned once."""
    seen: dict[object, str] = {}
    for key, tensor in state.items():
        seen.setdefault(
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if len(tensor.shape) else key, key
        )
    return [tensor_part(key, state[key]) for key in seen.values()]


def _shards(folder: str, names: list[str]) -> list[str]:
    try:
        return shard_names(read_json(_bytes_of(folder, WEIGHTS_INDEX)), names)
    except ValueError as error:
        raise CheckpointError(f"{WEIGHTS_INDEX} is invalid: {error}.") from error


def _bytes_of(folder: str, name: str) -> bytes:
    """Return the bytes of a small regular file. Raises CheckpointError if it is larger than a document may be."""
    path = os.path.join(folder, name)
    with open_regular(path) as file:
        most = limits().document_bytes
        if os.fstat(file.fileno()).st_size > most:
            raise CheckpointError(f"{path} is longer than {most} bytes; the limit document_bytes raises this.")
        return b"".join(iter(lambda: file.read(1 << 20), b""))[: most + 1]


def _read(folder: str, name: str, start: int = 0) -> Iterator[memoryview]:
    with open_regular(os.path.join(folder, name)) as file:
        left = os.fstat(file.fileno()).st_size - start
        file.seek(start)
        while left > 0 and (chunk := file.read(min(left, 1 << 22))):
            left -= len(chunk)
            yield memoryview(chunk)
