"""A progress bar for the data that a resumed run passes over."""

from __future__ import annotations

import warnings
from typing import Any

from hexloop.adapters.batches.torch.data_state import Progress, no_progress
from hexloop.app.arguments import TrainingArguments


class PassingBar:
    """Shows how many of the samples before a resumed position are passed over.

    One that fails is given up with a warning, and the run goes on.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._given_up = False

    def __call__(self, passed: int, total: int) -> None:
        """So many of `total` samples are passed over; the bar is taken away when all are."""
        if self._given_up:
            return
        try:
            self._show(passed, total)
        except Exception as error:
            self._given_up = True
            warnings.warn(
                f"The progress bar of the data that are passed over failed ({type(error).__name__}: {error}); the run "
                "goes on without it. Set disable_tqdm=True to do without bars.",
                stacklevel=2,
            )

    def _show(self, passed: int, total: int) -> None:
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc="Passing over samples", unit="sample", dynamic_ncols=True, leave=False)
        self._bar.update(passed - self._bar.n)
        if passed >= total:
            self._bar.close()
            self._bar = None


def passing_bar(args: TrainingArguments) -> Progress:
    """A bar in the first process of each machine, unless the arguments want none."""
    return no_progress if args.disable_tqdm or args.local_process_index != 0 else PassingBar()
