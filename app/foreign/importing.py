"""From a checkpoint of the reference library to one of hexloop's."""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.foreign.names import ARGUMENTS, OPTIMIZER, SCALER, SCHEDULER, STATE
from hexloop.app.foreign.pickled import read_pickled, refuse_irregular
from hexloop.app.foreign.positions import run_state_of
from hexloop.app.foreign.streams import random_parts
from hexloop.app.foreign.weights import weight_parts
from hexloop.domain.checkpoints.names import MANIFEST, checkpoint_name
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import SaveFailed
from hexloop.domain.json_documents import json_part
from hexloop.domain.state import RunState
from hexloop.ports.files import File
from hexloop.ports.state import Exportable, Part

COMPANIONS = frozenset({".json", ".txt", ".model", ".jinja", ".vocab", ".md"})
"""The endings of the files that lie beside a model: its configuration, its tokenizer."""

IMPORTED_FROM = "imported_from"
"""The entry of `run_setup.json` that an imported checkpoint has, and its value says from what."""

NO_LOSSES = {"sum": 0.0, "finite": 0, "added": 0, "waiting": [], "dtype": "float32"}


@frozen
class Kept:
    """What somebody exported once."""

    parts: tuple[Part, ...]

    def export(self) -> Iterator[Part]:
        """The parts."""
        return iter(self.parts)

    def load(self, parts: Iterable[Part]) -> None:
        """Raises TypeError: it is there to be written."""
        raise TypeError("What was imported is not loaded into.")


@frozen
class ImportedSetup:
    """The little that the reference library's checkpoints say of a run."""

    def document(self) -> dict[str, Any]:
        """Where it comes from."""
        return {IMPORTED_FROM: "transformers"}

    def differences(self, *_: object) -> tuple[str, ...]:
        """It is never compared."""
        return ()

    def not_loaded(self, *_: object) -> tuple[str, ...]:
        """It is never loaded."""
        return ()

    def adapt(self, *_: object) -> None:
        """It is never loaded."""


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
    """Write what a checkpoint of the reference library (4 or 5) holds as `checkpoint-<step>` in the folder `to`.

    Gives the new checkpoint's folder, from which a hexloop run goes on. Weights, optimizer, schedule, loss scale,
    random streams and history come along; `training_args.bin` is not looked at: give the run's arguments again.
    gradient_accumulation_steps, processes, seed, data_seed: those of the run, which its checkpoint does not hold.
    train_batch_size: samples of a micro-batch in each process, which those of early releases do not hold either.

    Files are read as data only: one that asks for more is refused, and nothing of it has run. Raises CheckpointError
    where the folder holds no such checkpoint, or one that cannot be read so, and where `to` has one of that step
    already; StorageError where it cannot be written.
    """
    source = os.fspath(folder)
    state = run_state_of(
        _read_state(source),
        gradient_accumulation_steps,
        processes,
        seed,
        seed if data_seed is None else data_seed,
        train_batch_size,
    )
    state.run = uuid.uuid4().hex
    storage, name = LocalStorage(to), checkpoint_name(state.step)
    if any(entry.name == name for entry in storage.list("")):
        raise CheckpointError(
            f"You chose to write {name} to {os.fspath(to)}, where there is one; choose another folder."
        )
    kept: dict[str, Exportable] = {keeper: Kept(tuple(parts)) for keeper, parts in _parts(source, state).items()}
    contents = CheckpointContents(kept, lambda: _companions(source), setup=ImportedSetup())
    for event in CheckpointStore(storage, contents).save(state):
        if isinstance(event, SaveFailed):
            raise StorageError(f"{name} was not written to {os.fspath(to)}: {event.error}") from event.error
    return os.path.join(os.fspath(to), name)


def _parts(folder: str, state: RunState) -> dict[str, list[Part]]:
    """What the folder holds, by who keeps it in a hexloop run."""
    from hexloop.adapters.trainable.torch.numbering import numbered_parts

    parts = {"model": weight_parts(folder), "losses": [json_part("undrained", NO_LOSSES)]}
    if not _has(folder, OPTIMIZER) or not _has(folder, SCHEDULER):
        raise CheckpointError(
            f"You chose to import {folder}, but it has no {OPTIMIZER} or no {SCHEDULER}, so no run can go on from it: "
            "it holds weights alone, or those of several processes; load its weights into your model instead."
        )
    optimizer, schedule = read_pickled(folder, OPTIMIZER), read_pickled(folder, SCHEDULER)
    state.updates = _sensible(folder, SCHEDULER, lambda: int(schedule["last_epoch"]))
    rates = _sensible(folder, OPTIMIZER, lambda: [float(group["lr"]) for group in optimizer["param_groups"]])
    parts["optimizer"] = _sensible(folder, OPTIMIZER, lambda: list(numbered_parts(optimizer)))
    parts["scheduler"] = _sensible(folder, SCHEDULER, lambda: [_schedule_part(schedule, rates, state)])
    if _has(folder, SCALER):
        parts["scaler"] = [json_part("scaler", read_pickled(folder, SCALER))]
    parts["random"] = random_parts(folder)
    return parts


def _schedule_part(schedule: dict[str, Any], rates: list[float], state: RunState) -> Part:
    """What hexloop's own schedule, or a torch scheduler of the user's, goes on from.

    Those that are a function of the step need the count of updates alone, and pass over this.
    """
    state.learning_rate = rates[0]
    if "num_bad_epochs" not in schedule:
        return json_part("scheduler", {"state": schedule, "rates": rates})
    state.updates = state.step
    if "warmup_counter" in schedule:
        raise CheckpointError(
            "The schedule of this checkpoint is the greedy one, whose state hexloop does not take over; finish the run "
            "where it began, or begin a new one from its weights."
        )
    best = schedule["best"]
    memory = {
        "best": None if best in (float("inf"), float("-inf")) else float(best),
        "num_bad_epochs": int(schedule["num_bad_epochs"]),
        "cooldown_counter": int(schedule["cooldown_counter"]),
    }
    alike = len(set(rates)) == 1
    return json_part("adaptive", {"rates": rates[:1] if alike else rates, "state": memory})


def _read_state(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, STATE)
    if not os.path.isdir(folder) or not _has(folder, STATE):
        raise CheckpointError(
            f"You chose to import {folder}, but there is no {STATE} in it; name a checkpoint's folder."
        )
    if _has(folder, MANIFEST):
        raise CheckpointError(f"You chose to import {folder}, but that is hexloop's own already; resume from it.")
    refuse_irregular(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))  # the reference library writes NaN as it is
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a JSON document: {error}.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    if _has(folder, ARGUMENTS):
        warnings.warn(
            f"{ARGUMENTS} is not loaded, as that would run code: give the run's arguments again when it goes on.",
            stacklevel=3,
        )
    return found


def _companions(folder: str) -> Iterator[File]:
    """The model's configuration and tokenizer."""
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in COMPANIONS and not path.name.endswith(".index.json"):
            refuse_irregular(str(path))
            yield File(path.name, [path.read_bytes()])


def _has(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def _sensible(folder: str, name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{os.path.join(folder, name)} makes no sense: {error!r}.") from error
