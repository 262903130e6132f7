"""Publishing where a rename is atomic."""

from __future__ import annotations

from attrs import frozen

from hexloop.domain.checkpoints.names import MANIFEST, Owner, free_name
from hexloop.ports.storage import Storage


@frozen
class RenamingPublisher:
    """Answers `Publisher`: a checkpoint is renamed when it is whole, and renamed back before it is removed."""

    storage: Storage
    owner: Owner

    def begin(self, name: str) -> str:
        """The staging folder, which appears with its first file."""
        return self.owner.staging(name)

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest, rename what is in the way, rename the staging folder."""
        staging = self.owner.staging(name)
        self.storage.write(f"{staging}/{MANIFEST}", [manifest])
        taken = {entry.name for entry in self.storage.list("")}
        if name in taken:
            self.storage.move(name, free_name(name, taken))
        self.storage.move(staging, name)

    def abandon(self, name: str) -> None:
        """Remove the staging folder."""
        self.storage.remove(self.owner.staging(name))

    def delete(self, name: str) -> None:
        """Rename the checkpoint back to where it was staged, and remove it there."""
        self.storage.move(name, self.owner.staging(name))
        self.abandon(name)

    def clean_up(self) -> None:
        """Remove every staging folder that this run left behind."""
        for entry in self.storage.list(""):
            if self.owner.left_behind(entry.name):
                self.storage.remove(entry.name)
