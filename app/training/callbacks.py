"""The callbacks that a Trainer has without being told."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import DefaultFlowCallback


def all_callbacks(args: TrainingArguments, given: Sequence[object], own_loggers: bool) -> list[object]:
    """The default flow, those that the caller gave, and last what shows the run.

    That is a progress bar (in a notebook with a table), or printed logs with `disable_tqdm`; nothing where the caller
    brought loggers, which then show all.
    """
    callbacks = [DefaultFlowCallback(), *given]
    return callbacks if own_loggers else [*callbacks, _showing(args)]


def _showing(args: TrainingArguments) -> object:
    if args.disable_tqdm:
        from hexloop.app.callbacks.printer import PrinterCallback

        return PrinterCallback()
    from hexloop.app.callbacks.notebook.callback import NotebookProgressCallback, in_notebook

    if in_notebook():
        return NotebookProgressCallback()
    from hexloop.app.callbacks.progress import ProgressCallback

    return ProgressCallback()
