"""Publishing and fetching models.

The port is small because the domain repeats what failed: an adapter carries out one attempt. It says whether a failure
is definite, by RefusedError (a wrong token, a name that is not accepted), or may be gone at the next attempt, by
UnavailableError. Both are StorageErrors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from hexloop.ports.storage import File


class Hub(Protocol):
    """A service through which models are shared by name. A version is a set of files, and never changes."""

    @property
    def address(self) -> str:
        """Where it is: a URL, "file://" and a folder, or a word; without secrets."""

    def create(self, name: str, private: bool | None = None) -> str:
        """Create the repository of a model if it does not exist; return its full name, such as "owner/model".

        Args:
            name: the name of the model, with or without its owner.
            private: whether a new one is private; None for the owner's default.
        """

    def publish(
        self,
        name: str,
        files: Iterable[File],
        message: str,
        *,
        delete: Sequence[str] = (),
        branch: str | None = None,
        parent: str | None = None,
        review: bool = False,
    ) -> str:
        """Publish the newest version of a branch, with its files changed, as a whole or not at all; return its name.

        Without a repository or branch of that name, one is made.

        Args:
            name: the name of the model, with or without its owner.
            files: are added or replaced.
            message: describes the change.
            delete: the paths of files that are removed, and those of folders, with "/" at the end, of which everything
                that is not among `files` is removed.
            branch: None for the main one.
            parent: the version that must be the branch's newest; UnavailableError is raised if it is not. None for any.
            review: propose the change to the owner of the repository, instead of making it.
        """

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a version or of the newest one of a branch; by default the newest of the main branch.

        Args:
            name: the name of the model, with or without its owner.
            version: a version, or the name of a branch.

        Raises:
            StorageError: if it does not exist.
        """
