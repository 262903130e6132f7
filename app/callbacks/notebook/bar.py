"""A progress bar as HTML."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from attrs import define, field

WIDTH = 300
"""Pixels."""


@define
class Bar:
    """How many of `total` are done, since when, and how long the rest may take.

    done: where it begins, which is where the rate is measured from. clock: seconds, from any point in time.
    """

    total: int
    done: int = 0
    comment: str = ""
    clock: Callable[[], float] = monotonic
    _began_with: int = field(init=False)
    _began_at: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._began_with, self._began_at = self.done, self.clock()

    def html(self) -> str:
        """The bar, and beside it the counts, the times and the comment."""
        return (
            f"<div><progress value='{self.done}' max='{self.total}' "
            f"style='width:{WIDTH}px; height:20px; vertical-align: middle;'></progress> {self.label()}</div>"
        )

    def label(self) -> str:
        """What stands beside the bar: `[3/10 00:06 < 00:14, 0.50 it/s, comment]`."""
        seconds, counted = self.clock() - self._began_at, self.done - self._began_with
        parts = [f"{self.done}/{self.total} {as_time(seconds)}"]
        if counted > 0 and seconds > 0:
            if self.done < self.total:
                parts[0] += f" &lt; {as_time(seconds / counted * (self.total - self.done))}"
            parts.append(f"{counted / seconds:.2f} it/s")
        if self.comment:
            parts.append(self.comment)
        return f"[{', '.join(parts)}]"


def as_time(seconds: float) -> str:
    """Whole seconds as `mm:ss`, from an hour on `h:mm:ss`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
