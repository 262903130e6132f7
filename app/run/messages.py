"""What a run logs: its start, what it loads, its evaluations, its saves, and its end.

Lines with facts that transformers logs too are written as there, so that programs that parse a log find them. During a
takeover they come from the same logger; everything else comes from the logger `hexloop`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.storage import joined
from hexloop.app.callbacks.console import duration_text, size_text, write_above_bars
from hexloop.app.notices import OWN, Notices
from hexloop.app.run.checkpoint_compatibility import AUTO
from hexloop.domain.checkpoints.commit import NotePhase
from hexloop.domain.checkpoints.selection import runs_in
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import AnyEvent, TrainEnded
from hexloop.domain.redaction import redact
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.domain.wording import listed
from hexloop.ports.storage import Storage

LOGGER = logging.getLogger(OWN)


def _remove_secrets(record: logging.LogRecord) -> bool:
    """Remove secrets from a log message."""
    message = record.getMessage()
    record.msg, record.args = redact(message), ()
    return True


LOGGER.addFilter(_remove_secrets)


def set_log_level(args: TrainingArguments, notices: Notices) -> None:
    """Set the level that the arguments define for this process on the logger `hexloop`, the parent of all others.

    During a takeover also on the logger `transformers`. `passive` leaves the level as the application set it. If a
    logger has no handler, its messages go to standard error, as in transformers.
    """
    chosen = args.log_level if args.should_log else args.log_level_replica
    if chosen == "passive":
        return
    names = {OWN, notices.logger.name.partition(".")[0]}
    for logger in map(logging.getLogger, sorted(names)):
        logger.setLevel(args.get_process_log_level())
        if args.log_level != "passive" and not logger.hasHandlers():
            handler = MessagesAboveBars()
            handler.setFormatter(logging.Formatter("[%(levelname)s] %(name)s: %(message)s"))
            logger.addHandler(handler)


class MessagesAboveBars(logging.StreamHandler[Any]):
    """Writes messages to standard error, above the progress bars that are shown there."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        try:
            write_above_bars(self.format(record), self.stream)
        except Exception:  # like all handlers of logging, this one does not raise
            self.handleError(record)


def warn_of_unsmoothed_labels(model: Any, args: Any, notices: Notices) -> None:
    """Warn that labels are not smoothed although the arguments ask for it, because a row has several of them."""
    problem_type = getattr(getattr(model, "config", None), "problem_type", None)
    if args.label_smoothing_factor and problem_type == "multi_label_classification":
        notices.warn(
            "label smoothing",
            f"label_smoothing_factor={args.label_smoothing_factor} is disabled: label smoothing is not compatible with "
            "multi-label classification, where a row has several labels at once.",
            stacklevel=3,
        )


# The start


def log_start(parts: TrainerParts, run: Run[Any, Any], loader: Any, resumed: str | None) -> None:
    """Log what is trained on what data, in how many steps, on which hardware, and where checkpoints go.

    resumed: the location of the checkpoint that the run resumes from; None if it is new.
    """
    if resumed is None or parts.args.overwrite_output_dir:
        _warn_of_other_runs(parts, run.state)
    logger = parts.notices.logger
    if not logger.isEnabledFor(logging.INFO):
        return
    args, adapters, plan = parts.args, parts.adapters, run.plan
    examples, in_all = adapters.framework.sample_count(loader), plan.total_steps * run.state.global_batch_size
    facts: dict[str, object] = {
        "Num examples": in_all if examples is None else examples,
        "Num Epochs": "not known" if plan.epochs is None else plan.epochs,
        "Num update steps per epoch": "not known" if plan.steps_per_epoch is None else plan.steps_per_epoch,
        "Instantaneous batch size per device": parts.train_batch_size // max(1, args.n_gpu),
        "Total train batch size (w. parallel, distributed & accumulation)": run.state.global_batch_size,
        "Gradient Accumulation steps": plan.accumulation,
        "Total optimization steps": plan.total_steps,
        "Number of trainable parameters": parts.hooks.get_num_trainable_parameters(),
    }
    if examples is None:
        facts["Length of the data"] = "not known, so that the examples are those of all steps"
    facts |= {
        "Number of steps set by": "max_steps" if args.max_steps > 0 else "num_train_epochs",
        "Model": type(parts.unwrapped_model).__name__,
        "Number of parameters": parts.adapters.framework.parameter_counts(parts)[0],
        "Device": adapters.device.name if args.n_gpu < 2 else f"{args.n_gpu} GPUs",
        "Precision": adapters.precision.name,
        "Engine": adapters.parallelism.capabilities.name,
        "Number of processes": adapters.mesh.size,
        "Checkpoints": _saves(parts, run),
    }
    logger.info("***** Running training *****")
    for name, value in facts.items():
        logger.info("  %s = %s", name, f"{value:,}" if isinstance(value, int) else value)
    if resumed is not None:
        epochs = plan.epoch_at(run.state.epoch, run.state.batches)
        place = run.state.epoch, f"{run.state.step:,}"
        logger.info("  Resuming training from checkpoint with epoch %s and global step %s", *place)
        logger.info("  Checkpoint resumed from = %s, after %.2f epochs", resumed, epochs)


def log_nothing_left(run: Run[Any, Any], resumed: str | None, resume_from: str | bool | None) -> None:
    """Report that the checkpoint is the end of the run, so that no step is trained.

    A warning, unless the caller asked to train only what is left of the run.
    """
    step, total = run.state.step, run.plan.total_steps
    if resumed is None or step < total:
        return
    level = logging.INFO if resume_from == AUTO else logging.WARNING
    LOGGER.log(
        level,
        "Nothing is left to train: %s is the state after step %s, and the run has %s steps. To train longer, increase "
        "num_train_epochs or max_steps; to train from the start, do not resume.",
        resumed,
        f"{step:,}",
        f"{total:,}",
    )


def location_of(storage: Storage) -> str:
    """Return the folder or URL of a storage."""
    return storage.capabilities.local_folder or storage.capabilities.location


def resumed_from(storage: Storage, resume_from: str | bool | None, latest: str | None) -> str | None:
    """Return the location of the checkpoint that a run was restored from; None if it starts from the beginning.

    latest: the name of the checkpoint that was chosen in the run's own storage.
    """
    if resume_from in (True, AUTO):
        return None if latest is None else joined(location_of(storage), latest)
    return str(resume_from) if resume_from else None


def _saves(parts: TrainerParts, run: Run[Any, Any]) -> str:
    """Return where checkpoints go, when, and how many are kept."""
    args, every = parts.args, run.triggers.save.every
    when = {
        "no": "none are saved (save_strategy='no')",
        "steps": f"every {every:,} steps" if every > 1 else "every step",
        "epoch": "every epoch",
        "best": "each best evaluation",
    }[str(getattr(args.save_strategy, "value", args.save_strategy))]
    if str(args.save_strategy) == "no":
        return when
    kept = "" if args.save_total_limit is None else f", of which {args.save_total_limit:,} are kept"
    return f"in {location_of(parts.adapters.storage)}, {when}{kept}"


def _warn_of_other_runs(parts: TrainerParts, state: RunState) -> None:
    """Warn that the checkpoints of earlier runs in the folder are neither deleted nor counted."""
    args = parts.args
    if not (args.should_log and str(args.save_strategy) != "no"):
        return
    storage = parts.adapters.storage
    try:
        others = [name for run, name in runs_in(storage).items() if run != state.run]
    except (CheckpointError, StorageError):
        return
    if others:
        LOGGER.warning(
            "%s%s holds checkpoints of other runs (up to %s), and they stay: save_total_limit counts only those of "
            "this run, and one whose name this run takes is set aside. To remove those that are no longer needed: "
            "hexloop checkpoints prune %s --run NAME --keep 1, and with --replaced.",
            "overwrite_output_dir=True deletes nothing: " if args.overwrite_output_dir else "",
            location_of(storage),
            listed(others, ", "),
            location_of(storage),
        )


# Evaluations


def log_evaluation(parts: TrainerParts, loader: Any, description: str) -> None:
    """Log how many examples an evaluation or prediction, as `description` says, predicts, in batches of which size."""
    logger = parts.notices.logger
    if not logger.isEnabledFor(logging.INFO):
        return
    examples = parts.adapters.framework.sample_count(loader)
    logger.info("***** Running %s *****", description)
    logger.info("  Num examples: Unknown" if examples is None else f"  Num examples = {examples}")
    logger.info("  Batch size = %s", parts.args.eval_batch_size)


# Saves


def logging_saves(note: NotePhase, storage: Storage, clock: Callable[[], float]) -> NotePhase:
    """Return a `note` that also logs each checkpoint that is published or removed, and the first that is replaced.

    Any thread may call it.

    clock: returns seconds from any point in time.
    """
    times: dict[tuple[str, str], float] = {}
    sizes: dict[str, int] = {}
    replaced: list[str] = []

    def note_and_log(phase: str, /, **facts: Any) -> None:
        name = str(facts.get("checkpoint"))
        if phase == "replaces":
            if not replaced:
                LOGGER.warning(
                    "%s is that of another run, and is set aside, as all are whose names this run takes. "
                    "hexloop checkpoints list shows them, and hexloop checkpoints prune %s --replaced removes them.",
                    joined(location_of(storage), name),
                    location_of(storage),
                )
            replaced.append(name)
            return
        if phase in ("began", "taken"):
            times[phase, name] = clock()
        elif phase == "written":
            sizes[name] = facts["bytes"]
        elif phase == "published":
            began, taken = times.pop(("began", name), None), times.pop(("taken", name), None)
            text = f"{size_text(sizes.pop(name, 0))}"
            if began is not None:
                text += f" in {duration_text(clock() - began)}"
            if began is not None and taken is not None:
                text += f", of which training waited {duration_text(taken - began)}"
            LOGGER.info("Saved the checkpoint %s (%s).", joined(location_of(storage), name), text)
        elif phase == "rotated":
            LOGGER.info("Deleted %s, because of save_total_limit.", ", ".join(facts["removed"]))
        note(phase, **facts)

    return note_and_log


def log_best(storage: Storage, args: TrainingArguments, state: RunState) -> None:
    """Log which checkpoint's weights the run ends with, if it ends with the best."""
    if args.load_best_model_at_end and state.best_checkpoint is not None:
        LOGGER.info(
            "Loading the best model, %s (%s: %s).",
            joined(location_of(storage), state.best_checkpoint),
            args.metric_for_best_model,
            "not known" if state.best_metric is None else f"{state.best_metric:.6g}",
        )


# The end


def end_messages(parts: TrainerParts, run: Run[Any, Any]) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handler that logs how the run ended."""
    began_at = run.state.step

    def on_end(event: TrainEnded) -> None:
        if not LOGGER.isEnabledFor(logging.INFO):
            return
        total = run.plan.total_steps
        seconds, rate = event.metrics.get("train_runtime", 0.0), event.metrics.get("train_steps_per_second", 0.0)
        speed = f"{event.step - began_at:,} in {duration_text(seconds)}, {rate:.3g} per second"
        if event.step >= total:
            LOGGER.info("Training completed after %s optimization steps (%s).", f"{event.step:,}", speed)
            return
        why = _why_stopped(parts, event)
        LOGGER.info("Training stopped after %s of %s optimization steps (%s): %s.", event.step, total, speed, why)

    return {TrainEnded: on_end}


def _why_stopped(parts: TrainerParts, event: TrainEnded) -> str:
    if event.stopped:
        return ", ".join(filter(None, event.reasons)) or "a stop was requested"
    for callback in parts.callback_handler.callbacks:
        evaluations = getattr(callback, "early_stopping_patience_counter", 0)  # of hexloop or of transformers
        if 0 < getattr(callback, "early_stopping_patience", 0) <= evaluations:
            since = "evaluation" if evaluations == 1 else f"{evaluations} evaluations"
            return f"{parts.args.metric_for_best_model} has not improved in the last {since}"
    return "a callback set should_training_stop"
