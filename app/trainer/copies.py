"""Copies of a Trainer, by `copy.deepcopy` and by pickle."""

from __future__ import annotations

from typing import Any

from hexloop.app.callbacks import TrainerState
from hexloop.app.trainer.hooks import TrainerHooks
from hexloop.domain.errors import RunStateError

MADE_AGAIN = frozenset(
    {"adapters", "_requests", "_dispatcher", "_memory", "_kept_loaders", "_own_publisher", "push_in_progress"}
)
"""The attributes that hold threads, locks, connections or a process's place among the others.

A copy makes its own from the arguments, and from the adapters that were passed to the constructor, when it needs them.
"""


class PassedAdapters(dict[str, Any]):
    """The adapters that the user passed. A deep copy shares them: they are places and services, such as a storage."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PassedAdapters:
        return self


class TrainerCopies(TrainerHooks):
    """What a copy of a Trainer takes over: everything that the user passed or assigned, and what follows from it.

    The copy shares nothing with the original that training changes, but the adapters that the user passed. Requests to
    a run, pushes in flight and the loaders that persist stay with the original.
    """

    _passed: PassedAdapters
    """The adapters that were passed to the constructor."""

    def __copy__(self) -> Any:
        """Return a second Trainer with the same attributes, which shares them."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes over. Raises RunStateError while a run is live."""
        if self._session is not None or self._is_active or self._is_in_own_train:
            raise RunStateError(
                "A Trainer with a live run cannot be copied or pickled, because the run is part of it; do so before "
                "train(), or after it has returned. A function that processes are to receive, such as a data collator, "
                "must not refer to the Trainer."
            )
        kept = {name: value for name, value in vars(self).items() if name not in MADE_AGAIN}
        accelerator = kept.pop("_accelerator", None)
        if getattr(accelerator, "is_made", False):
            accelerator = accelerator.real
            if self._own_gather_function == self.accelerator.gather:
                kept["_own_gather_function"] = "accelerator"
        return {**kept, "_accelerator": accelerator}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Take over what another Trainer left."""
        accelerator = kept.pop("_accelerator", None)
        vars(self).update(kept)
        if isinstance(kept.get("state"), TrainerState):
            self.state.checkpoints_folder, self.state.spelled = str(self.args.output_dir), self._started_in.spelled
        if accelerator is not None:
            self.adapters  # noqa: B018  # made now, because an accelerator is compared with them
            self.accelerator = accelerator
        if kept.get("_own_gather_function") == "accelerator":
            self._own_gather_function = self.accelerator.gather
