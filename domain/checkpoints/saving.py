"""One save, from the run's files to their place among its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from attrs import define, field

from hexloop.domain.checkpoints.commit import Committer
from hexloop.domain.checkpoints.lineage import Lineage
from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.checkpoints.policy import CheckpointPolicy
from hexloop.domain.checkpoints.reading import belongs, checkpoint_steps, is_protected, read_manifest
from hexloop.domain.checkpoints.room import PAUSES, RoomMaker
from hexloop.domain.checkpoints.together import by_leader
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.ports.files import File
from hexloop.ports.storage import Stored


@define(eq=False)
class Saving:
    """Commits the checkpoint at `step`, then rotates. `run` may be called in a thread beside the loop.

    files: gives the files, anew for each attempt. held: the steps of this lineage's checkpoints, kept up to date.
    best: the name of the best checkpoint. parent, environment, world_size: for the manifest.
    before: what the state named as parent and best before this save, for when it fails.
    tidy: nothing unfinished of this run is on the storage. wait, pauses: see `RoomMaker`.
    complaint: why older checkpoints are still there, where they could not be removed.
    """

    step: int
    files: Callable[[], Iterator[File]]
    committer: Committer
    lineage: Lineage
    policy: CheckpointPolicy
    held: set[int]
    best: str | None
    parent: str | None
    before: tuple[str | None, str | None]
    environment: Mapping[str, str]
    world_size: int
    tidy: bool
    wait: Callable[[float], object]
    pauses: tuple[float, ...] = PAUSES
    complaint: str | None = field(default=None, init=False)
    room: RoomMaker = field(init=False)

    @room.default
    def _make_room(self) -> RoomMaker:
        return RoomMaker(self.wait, self.pauses)

    @property
    def name(self) -> str:
        """The checkpoint's."""
        return checkpoint_name(self.step)

    def run(self) -> None:
        """Save; once this returns, the checkpoint is durable. Raises StorageError, and what making the files raised."""
        if not self._is_there():
            self.room.attempt(lambda: self.committer.commit(self.name, self.files(), self._manifest), self._prune)
        self.held.add(self.step)
        self._rotate()

    def tidy_up(self) -> None:
        """What a save does beside saving, of the checkpoint that is there. Raises StorageError."""
        self._is_there()
        self._rotate()

    def _is_there(self) -> bool:
        """Whether the checkpoint is there already. Takes note, on every rank, of which others are there still."""
        is_there, *held = by_leader(self.committer.collectives, self._look)
        self.held &= set(held)
        return bool(is_there)

    def _look(self) -> list[int]:
        """Clean up, and see whether the checkpoint is there, and which of those held; all ranks go by what one saw."""
        if not self.tidy:
            try:
                self.committer.publisher.clean_up()
            except StorageError as error:  # what cannot be removed is no reason not to save
                self.complaint = f"What an earlier save left unfinished is still there: {error}"
        present = set(checkpoint_steps(self.committer.storage))
        is_there = self.step in present and belongs(self.committer.storage, self.step, self.lineage)
        return [is_there, *(self.held & present)]

    def _manifest(self, files: Mapping[str, Stored]) -> Manifest:
        return Manifest(
            run=self.lineage.run,
            session=self.lineage.session,
            ancestors=self.lineage.ancestors,
            parent=self.parent,
            step=self.step,
            world_size=self.world_size,
            environment=dict(self.environment),
            files=files,
        )

    def _prune(self) -> bool:
        """Remove one checkpoint that this save makes superfluous, but never the newest one there is."""
        try:
            surplus = self._surplus(self.held | {self.step})
            spare = tuple(step for step in surplus if step != max(self.held))[:1]
            self._remove(spare)
        except (StorageError, CheckpointError):
            return False
        return bool(spare)

    def _rotate(self) -> None:
        """Remove what the policy no longer keeps, once the newest is seen to be there; a failure puts it off."""
        removed: tuple[int, ...] = ()
        try:
            removed = self._surplus(self.held)
            self._remove(removed, after=self.name)
        except (StorageError, CheckpointError) as error:
            self.complaint = f"Older checkpoints than save_total_limit allows are still there: {error}"
        if removed:
            self.committer.note("rotated", checkpoint=self.name, removed=[checkpoint_name(step) for step in removed])

    def _surplus(self, steps: set[int]) -> tuple[int, ...]:
        """What the policy no longer keeps, and nobody protects; all ranks go by what one saw."""
        if not self.policy.surplus(steps, self.best):
            return ()
        looked_at = partial(is_protected, self.committer.storage)
        return tuple(
            by_leader(self.committer.collectives, lambda: list(self.policy.surplus(steps, self.best, looked_at)))
        )

    def _remove(self, steps: tuple[int, ...], after: str | None = None) -> None:
        """Remove the checkpoints at `steps` that are still this lineage's, where the one named is there to stay.

        No rank holds them any more then; where it fails, every rank goes on holding all.
        """
        if not steps:
            return
        storage, publisher = self.committer.storage, self.committer.publisher

        def remove() -> None:
            if after is not None:
                read_manifest(storage, after)
            for step in steps:
                if belongs(storage, step, self.lineage):
                    publisher.delete(checkpoint_name(step))

        by_leader(self.committer.collectives, remove)
        self.held.difference_update(steps)
