"""How a Trainer's run ended, for whoever decides whether to start it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.events import AnyEvent, CheckpointPublished, SaveFailed, TrainEnded

FAILED = 1
"""The exit code of a program whose run's last steps are not saved, though it was stopped, or a save of them failed."""

STOPPED = 3
"""The exit code of one whose run was stopped before its end, and is saved: start it again to go on."""


@frozen
class Outcome:
    """How a run ended.

    step: optimizer steps done. stopped: whether it was asked to end before its last step; `reasons`: by each who asked.
    checkpoint: the one that holds the last step, None where there is none. save_failed: whether the newest save did,
    so that steps are lost which a checkpoint was to hold.
    """

    step: int
    stopped: bool
    reasons: tuple[str, ...]
    checkpoint: str | None
    save_failed: bool = False

    @property
    def exit_code(self) -> int:
        """What a script may exit with: 0 done, 3 stopped and saved, 1 not saved though it was to be."""
        if not self.stopped:
            return FAILED if self.save_failed else 0
        return STOPPED if self.checkpoint is not None else FAILED


def watch_outcome(
    set_outcome: Callable[[Outcome | None], None], note_finished: Callable[[], None]
) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handlers that find out how the run ended; `set_outcome` gets None until then.

    note_finished: called if the run reached its end and its last save succeeded.
    """
    published: set[str] = set()
    failed: set[int] = set()
    set_outcome(None)

    def saved(event: CheckpointPublished) -> None:
        published.add(event.name)
        failed.clear()

    def ended(event: TrainEnded) -> None:
        last = checkpoint_name(event.step)
        checkpoint = last if last in published else None
        set_outcome(Outcome(event.step, event.stopped, event.reasons, checkpoint, bool(failed)))
        if not event.stopped and published and not failed:
            note_finished()

    return {CheckpointPublished: saved, SaveFailed: lambda event: failed.add(event.step), TrainEnded: ended}
