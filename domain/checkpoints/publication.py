"""How a checkpoint appears whole and disappears whole, whatever instant the process dies at."""

from __future__ import annotations

from typing import Protocol

from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.names import Owner
from hexloop.domain.checkpoints.renaming import RenamingPublisher
from hexloop.ports.storage import Publication, Storage


class Publisher(Protocol):
    """One way of publishing.

    Whatever a method leaves undone, by a StorageError or a death, `clean_up` finds; it comes before the next `begin`.
    """

    def begin(self, name: str) -> str:
        """Make ready for the checkpoint `name`, and say in which folder its files are to be written."""
        ...

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest and let the checkpoint appear. A folder that bears its name already is renamed first."""
        ...

    def abandon(self, name: str) -> None:
        """Remove what was written since `begin`."""
        ...

    def delete(self, name: str) -> None:
        """Remove a published checkpoint."""
        ...

    def clean_up(self) -> None:
        """Remove what this run left unfinished, in this session or an earlier one, and nothing else."""
        ...


def publisher_for(storage: Storage, owner: Owner) -> Publisher:
    """The publisher that makes do with what the storage promises."""
    if storage.capabilities.publication is Publication.RENAME:
        return RenamingPublisher(storage, owner)
    return InPlacePublisher(storage, owner)
