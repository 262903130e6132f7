"""A storage whose manifests are signed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve, frozen

from hexloop.ports.storage import Entry, Signatures, Storage, StorageCapabilities, Stored


@frozen
class SignedStorage:
    """Storage adapter that states, besides what another storage does, that its manifests are signed, and by which key.

    It only forwards: what is signed and checked belongs to `hexloop.domain.checkpoints.signatures`.

    Args:
        inner: the storage that holds the files.
        signatures: sign and verify manifests.
    """

    inner: Storage
    signatures: Signatures

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the other storage, and the signatures."""
        return evolve(self.inner.capabilities, signatures=self.signatures)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """See `Storage.write`."""
        return self.inner.write(path, chunks)

    def sync(self, paths: Sequence[str]) -> None:
        """See `Storage.sync`."""
        self.inner.sync(paths)

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """See `Storage.read`."""
        return self.inner.read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """See `Storage.list`."""
        return self.inner.list(folder)

    def move(self, source: str, destination: str) -> None:
        """See `Storage.move`."""
        self.inner.move(source, destination)

    def remove(self, path: str) -> None:
        """See `Storage.remove`."""
        self.inner.remove(path)

    def digest(self, path: str) -> Stored:
        """See `Storage.digest`."""
        return self.inner.digest(path)
