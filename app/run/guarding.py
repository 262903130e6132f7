"""What a run does about losses that are not finite and about loss spikes: its guard, and what it reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import exportables
from hexloop.app.rules import rules_of
from hexloop.app.run.checkpoints import callbacks_state, restore_callbacks
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import AnyEvent, IrregularWindow
from hexloop.domain.guard import Guard, GuardOptions, Reaction, WindowPlace
from hexloop.domain.kept_state import StateInMemory
from hexloop.domain.run import Run
from hexloop.domain.state import RunState, SkippedWindow
from hexloop.domain.wording import troubleshooting

LOGGER = logging.getLogger("hexloop")

MOST_INDICES = 1000
"""How many samples of a window are named in the journal."""

NAMED = 8
"""How many samples of a window are named in a message."""


def guard_options(args: TrainingArguments) -> GuardOptions:
    """Return what the arguments say is looked for, and the reactions."""
    return GuardOptions(
        on_nonfinite=Reaction(args.on_nonfinite),
        spike_factor=args.spike_factor,
        on_spike=Reaction(args.on_spike),
        limit=args.nonfinite_limit,
        filters=args.logging_nan_inf_filter,
        counts=rules_of(args).own_losses,
    )


def make_guard(parts: TrainerParts, run: Run[Any, Any], loader: Any, settle_counters: Callable[[], None]) -> Guard[Any]:
    """Return what looks at the losses of a run. settle_counters: adds all pending counts to the run's state."""
    options, handler, control = guard_options(parts.args), parts.callback_handler, parts.control
    if options.leaves_out and parts.hooks.follows_boundaries:
        raise ConfigurationError(
            "on_nonfinite or on_spike is 'skip' or 'rollback', but _maybe_log_save_evaluate is overridden, and keeps a "
            "sum of losses that cannot return to an earlier step; choose 'stop' or 'warn', or remove the override."
        )

    def complete(state: RunState) -> None:
        settle_counters()
        state.callbacks = callbacks_state(handler, control)

    def restore(state: RunState) -> None:
        settle_counters()  # to the state that is given up
        restore_callbacks(handler, control, deepcopy(state.callbacks), parts.notices)

    framework = parts.adapters.framework
    whole = exportables(parts, run, framework.weights(parts.unwrapped_model).state(parts))
    state = {**whole, **parts.averages.weights.kept(), **(framework.kept_state(parts) if options.leaves_out else {})}
    kept = StateInMemory(state, framework.snapshots(parts), parts.adapters.device, complete, restore)
    return Guard(options, framework.window_values(parts), kept, partial(_indices, loader), partial(_leave_out, loader))


def _indices(loader: Any, place: WindowPlace) -> Sequence[int] | None:
    """Return the indices of a window's samples; None if another loader than hexloop's own decides on the order."""
    indices_at = getattr(getattr(loader, "order", None), "indices_at", None)
    return None if indices_at is None else indices_at(place.epoch, place.position, min(place.samples, MOST_INDICES))


def _leave_out(loader: Any, windows: Sequence[SkippedWindow]) -> None:
    """Tell hexloop's own sampler which samples do not count for the random streams of later ones."""
    if (order := getattr(loader, "order", None)) is None or not hasattr(order, "left_out"):
        return
    order.left_out = {}
    for each in windows:
        order.left_out.setdefault(each.epoch, []).append((each.position, each.samples))


def guard_messages(args: TrainingArguments) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handler that warns of such windows, in the process that logs."""

    def on_irregular(event: IrregularWindow) -> None:
        if args.should_log:
            LOGGER.warning("%s", warning_of(event))

    return {IrregularWindow: on_irregular}


def warning_of(event: IrregularWindow) -> str:
    """Return what is wrong with a window, what the run does about it, and what to look at."""
    named = ""
    if event.indices:
        more = ", ..." if event.samples > NAMED else ""
        named = f" They are {', '.join(map(str, event.indices[:NAMED]))}{more} in the dataset."
    look = "Look at these samples, the learning rate and the precision"
    if event.kind != "spike":
        look += "; debug='underflow_overflow' names the first layer whose values are not finite"
    look = f" {look}. For help, {troubleshooting('NaN loss')}." if event.first else ""
    if event.reaction in ("skip", "rollback"):
        done = f"The run continues from step {event.back_to:,}, without this step's samples.{look}"
    elif event.reaction == "stop":
        done = "The run stops."
    else:
        argument = "on_spike" if event.kind == "spike" else "on_nonfinite"
        also = " Weights that were updated with it are not finite either." if event.kind != "spike" else ""
        done = (
            f"The step was trained on.{also}{look} With {argument}='stop', 'skip' or 'rollback' a run stops there, "
            "or continues without such steps. Later ones are counted, and not warned of."
        )
    return f"{event.described}.{named} {done}"
