"""The callbacks that a Trainer has without being told."""

from __future__ import annotations

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import DefaultFlowCallback


def default_callbacks(args: TrainingArguments, own_loggers: bool) -> list[object]:
    """The default flow, and a progress bar or printed logs unless the caller brought loggers, which then show all."""
    callbacks: list[object] = [DefaultFlowCallback()]
    if own_loggers:
        return callbacks
    if args.disable_tqdm:
        from hexloop.app.callbacks.printer import PrinterCallback

        return [*callbacks, PrinterCallback()]
    from hexloop.app.callbacks.progress import ProgressCallback

    return [*callbacks, ProgressCallback()]
