"""Conversion of torch state to checkpoint parts and back, and writing a checkpoint from parts outside a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.contents.checkpoint.contents import parts_of
from hexloop.adapters.contents.checkpoint.safetensors_files import MODEL, is_weights
from hexloop.adapters.device.torch.base import decode_state, encode_state
from hexloop.adapters.trainable.torch.numbering import numbered_parts, state_dict_of
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import StorageError
from hexloop.domain.events import SaveFailed
from hexloop.domain.state import RunState
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File
from hexloop.ports.state import Exportable, Part
from hexloop.ports.storage import Storage

ORIGIN = "imported_from"
"""The entry of `run_setup.json` in an imported checkpoint that names where it comes from."""


@frozen
class FixedParts:
    """Parts that were exported before."""

    parts: tuple[Part, ...]

    def export(self) -> Iterator[Part]:
        """Return the parts."""
        return iter(self.parts)

    def load(self, parts: Iterable[Part]) -> None:
        """Raise TypeError, as these parts are only written."""
        raise TypeError("Imported state is only written; nothing can be loaded into it.")


@frozen
class ImportedSetup:
    """The setup of a run that was imported, of which only the origin is known."""

    origin: str

    def document(self) -> dict[str, Any]:
        """Return the origin."""
        return {ORIGIN: self.origin}

    def differences(self, *_: object) -> tuple[str, ...]:
        """Return nothing; an imported setup is never compared."""
        return ()

    def not_loaded(self, *_: object) -> tuple[str, ...]:
        """Return nothing; an imported setup is never loaded."""
        return ()

    def adapt(self, *_: object) -> None:
        """No-op; an imported setup is never loaded."""


def write_checkpoint(
    storage: Storage,
    state: RunState,
    components: Mapping[str, Sequence[Part]],
    extra_files: Callable[[], Iterable[File]],
    origin: str,
) -> None:
    """Write a checkpoint of a run that is imported from elsewhere. Raises StorageError if it cannot be written."""
    exportables: dict[str, Exportable] = {name: FixedParts(tuple(parts)) for name, parts in components.items()}
    contents = CheckpointContents(exportables, extra_files, setup=ImportedSetup(origin))
    for event in CheckpointStore(storage, contents).save(state):
        if isinstance(event, SaveFailed):
            raise StorageError(
                f"The checkpoint was not written to {storage.capabilities.location}: {event.error}"
            ) from event.error


def safetensors_weights(names: Collection[str], open_file: OpenFile) -> list[Part] | None:
    """Return the model weights in safetensors files; None if there are none among the files `names`."""
    weights = [name for name in names if is_weights(name)]
    return parts_of(MODEL, weights, open_file) if weights else None


def weight_part(name: str, tensor: Tensor) -> Part:
    """Return a tensor as a part. Raises CheckpointError for a dtype that safetensors does not have."""
    return tensor_part(name, tensor)


def optimizer_parts(state_dict: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a torch optimizer's state dict. Raises CheckpointError for state that cannot be saved."""
    return list(numbered_parts(state_dict))


def optimizer_state_dict(parts: Mapping[str, Part], groups: Sequence[Sequence[str]] | None = None) -> dict[str, Any]:
    """Return a torch optimizer's state dict, with parameters numbered in order.

    groups: the names of the parameters by group, if they differ from the saved groups. Raises ValueError for state that
    torch's state dict cannot hold.
    """
    return state_dict_of(parts, groups)


def encode_random_state(state: Tensor) -> str:
    """Return the state of a torch random generator as text for JSON."""
    return encode_state(state)


def decode_random_state(text: str) -> Tensor:
    """Return the state of a torch random generator from text."""
    return decode_state(text)
