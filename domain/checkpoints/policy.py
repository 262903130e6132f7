"""How many checkpoints are kept, and which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from attrs import frozen

from hexloop.domain.checkpoints.names import checkpoint_name


@frozen
class CheckpointPolicy:
    """Which checkpoints of a run are kept; the newest always is.

    save_total_limit: how many there may be; None, or a number below 1: any number.
    keep_best: the one with the best metric is kept, too. protected: names of others that are kept.
    What must be kept counts as well, and may be more than the limit: with a limit of 1, the best and the newest stay.
    """

    save_total_limit: int | None = None
    keep_best: bool = True
    protected: frozenset[str] = frozenset()

    def surplus(
        self, steps: Iterable[int], best: str | None = None, is_protected: Callable[[str], bool] = lambda _: False
    ) -> tuple[int, ...]:
        """Of the checkpoints at `steps`, those to remove, from the oldest on; `best` is the name of the best.

        is_protected: asked by name of those that would be removed otherwise, whether somebody protects them.
        """
        if self.save_total_limit is None or self.save_total_limit <= 0:
            return ()
        ordered = sorted(set(steps))
        kept = self.protected | {best} if self.keep_best else self.protected
        names = {step: checkpoint_name(step) for step in ordered[:-1]}
        removable = (step for step, name in names.items() if name not in kept and not is_protected(name))
        return tuple(islice(removable, max(len(ordered) - self.save_total_limit, 0)))
