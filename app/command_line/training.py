"""`hexloop train`: train what a recipe describes, and report how the run ended and how to resume it."""

from __future__ import annotations

import io
import os
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from attrs import define, frozen

import hexloop
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import choose_interrupts, choose_storage
from hexloop.app.assembly.storage import as_location, is_elsewhere, is_missing, joined, scheme_of, storage_for
from hexloop.app.callbacks.beside_bars import announce
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.evaluating import values_of_trial
from hexloop.app.command_line.options import AUTO, RESUME, command_text, without_options
from hexloop.app.printing import print_lines, print_text
from hexloop.app.recipe import read_recipe
from hexloop.app.run.checkpoints import finished_at
from hexloop.app.run.session import RunOutcome
from hexloop.app.trainer.attributes import folder_of
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps, read_manifest
from hexloop.domain.checkpoints.selection import runs_in
from hexloop.domain.errors import CheckpointError, ConfigurationError, HexloopError, StorageError
from hexloop.domain.events import CheckpointPublished, Paused, TrainEnded
from hexloop.domain.run_folder import EARLIER
from hexloop.ports.process import Interrupts

SIGNALS = ("SIGINT", "SIGTERM")
"""The signals that stop a run if its arguments do not name any."""


@define
class Progress:
    """The name of the run, None until its first event, and the step of the last checkpoint that it reported."""

    run: str | None = None
    published: int | None = None


@frozen
class AnnouncedInterrupts:
    """Interrupts that print a message as soon as a request arrives."""

    source: Interrupts

    def start(self, ask: Callable[[str], None]) -> None:
        """Start listening to the source."""

        def announce_and_ask(reason: str) -> None:
            again = " a second one stops immediately." if reason.startswith("signal") else ""
            announce(f"hexloop: {reason}: saving and stopping;{again}".rstrip(";"))
            ask(reason)

        self.source.start(announce_and_ask)

    def stop(self) -> None:
        """Stop listening."""
        self.source.stop()


def run(options: Namespace) -> ExitCode:
    """Train, and print at the end where everything is and how to resume."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that logs in a file or pipe can be followed

    def problems(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        strategy = getattr(arguments.eval_strategy, "value", arguments.eval_strategy)
        if strategy != "no" and "eval_dataset" not in given:
            yield (
                f"You chose eval_strategy={strategy!r}, but the recipe has no eval_dataset; add one, or set "
                "eval_strategy='no'."
            )
        yield from _resume_problems(_resume_source(options, arguments), arguments)

    values = values_of_trial(options, with_folder=False)
    recipe = read_recipe(options.recipe, ("model", "train_dataset"), options, options.unknown, problems, values)
    arguments = recipe.arguments
    if options.dry_run:
        from hexloop.app.command_line.forecast import dry_run

        return dry_run(recipe, options)
    if options.check:
        print_lines(f"{options.recipe}: no mistake was found. Nothing was trained.")
        return ExitCode.DONE
    source, storage = _resume_source(options, arguments), choose_storage(arguments)
    if source == AUTO and (step := finished_at(storage, arguments)) is not None:
        if arguments.process_index == 0:
            print_lines(
                f"{options.recipe}: this run finished after {step:,} steps; its checkpoints are in "
                f"{arguments.output_dir}. Increase the number of steps to continue it, or choose another "
                "output_dir to start a new run."
            )
        return ExitCode.DONE
    trainer = recipe.make_trainer(("train_dataset", "eval_dataset"))
    prints = trainer.is_world_process_zero()
    if prints:
        print_text(_opening_line(trainer, options.recipe), to=sys.stdout)
    progress, started = Progress(), time.time()
    try:
        drive(trainer, source, progress)
    except BaseException as error:
        if progress.run is not None:
            closing_line = _closing_line(trainer, options, progress)
            error.add_note(f"The run ended after step {trainer.state.global_step:,}. {closing_line}")
        raise
    assert trainer.outcome is not None
    if prints:
        print_text(_summary(trainer, trainer.outcome), to=sys.stdout)
        if options.report:
            _write_report(folder_of(trainer))
        files = _written_since(folder_of(trainer), str(trainer.args.output_dir), started)
        print_text(_closing_line(trainer, options, progress, files), to=sys.stdout)
    return ExitCode(trainer.outcome.exit_code)


def drive(trainer: hexloop.Trainer, resume: str | bool | None, progress: Progress) -> None:
    """Train to the end. The interrupts named in the arguments, by default SIGINT and SIGTERM, save and stop the run."""
    from hexloop.app.trainer.attributes import session_of

    adapters = trainer.adapters
    if trainer.args.interrupts is None:
        adapters.interrupts = choose_interrupts(trainer.args, adapters.clock, [], SIGNALS, trainer._started_in)
    adapters.interrupts = AnnouncedInterrupts(adapters.interrupts)
    with closing(trainer.stream(resume)) as events:
        for event in events:
            session = session_of(trainer)
            if progress.run is None and session is not None:
                progress.run = session.run.state.run
            if isinstance(event, CheckpointPublished):
                progress.published = event.step
            if isinstance(event, Paused) and session is not None:
                session.wait_while_paused()
            if isinstance(event, TrainEnded) and not event.stopped and trainer.args.push_to_hub:
                _push_final_model(trainer)


def _push_final_model(trainer: hexloop.Trainer) -> None:
    """Publish the model with its card, unless the last model may not replace the best. The run then waits for it."""
    args = trainer.args
    if is_elsewhere(str(args.output_dir)) or (args.hub_strategy == "best" and not args.load_best_model_at_end):
        return
    try:
        trainer.push_to_hub(blocking=False)
    except (OSError, HexloopError) as error:
        print_text(f"hexloop: the final model was not published: {error}")


def _write_report(folder: str) -> None:
    """Write the page that shows the run into its folder. A failure is reported, and does not fail the run."""
    from hexloop.app.command_line.pages import REPORT, write_report
    from hexloop.app.pages.reading import read_runs

    try:
        if is_elsewhere(folder):
            raise ConfigurationError(f"{folder} is not on this machine; use `hexloop report {folder} --out FILE`.")
        write_report(read_runs([folder]), Path(as_location(folder), REPORT))
    except Exception as error:
        print_text(f"hexloop: the report was not written: {error}")


def _opening_line(trainer: hexloop.Trainer, recipe: str) -> str:
    """Describe what is trained, and on what."""
    model = trainer.model
    weights = sum(parameter.numel() for parameter in model.parameters())
    try:
        samples = f"{len(trainer.train_dataset):,} samples"
    except TypeError:
        samples = "a stream of samples"
    adapters = trainer.adapters
    return (
        f"{recipe}: {type(model).__name__} with {weights:,} weights, {samples}, on {adapters.device.name} in "
        f"{adapters.precision.name}; checkpoints go to {trainer.args.output_dir}"
    )


def _summary(trainer: hexloop.Trainer, outcome: RunOutcome) -> str:
    """Describe how the run ended, with the best metric if there is one."""
    state = trainer.state
    how = "Done" if outcome.step >= state.max_steps else "Done early,"
    if outcome.stopped:
        reason = next(filter(None, outcome.reasons), "")
        how = f"Stopped by {reason}" if reason else "Stopped on request"
    text = f"{how} after {outcome.step:,} of {state.max_steps:,} steps"
    if state.best_metric is not None:
        name = str(trainer.args.metric_for_best_model).removeprefix("eval_")
        text += f"; the best eval_{name} was {state.best_metric:.4g}, at step {state.best_global_step:,}"
    if (outcome.stopped and outcome.checkpoint is None) or outcome.save_failed:
        text += "; the steps after the last checkpoint are not saved"
    return f"{text}."


def _closing_line(trainer: hexloop.Trainer, options: Namespace, progress: Progress, look_at: Sequence[str] = ()) -> str:
    """Return one line with the checkpoints' folder, the files to look at, and the exact command for what is next.

    That is to resume, if it would train further, or to train longer.
    """
    args, outcome, source = trainer.args, trainer.outcome, _resume_source(options, trainer.args)
    reached = outcome is not None and outcome.step >= trainer.state.max_steps
    finished = reached and outcome is not None and not outcome.save_failed
    step = _last_saved(trainer, progress)
    is_saved = step is not None or source is True
    parts = [f"Checkpoints are in {args.output_dir}" if is_saved else "No checkpoint was written"]
    if look_at:
        parts.append(f"look at {', '.join(look_at)}")
    if outcome is not None and not outcome.stopped and not reached:
        # A callback or the end of the data ended the run. It ends at the same step again when it is resumed.
        if step is not None and trainer.eval_dataset is not None:
            parts.append(f"evaluate with: {_evaluate_command(options.argv)}")
    elif step is not None and not (source == AUTO and not finished):
        command = _resume_command(options.argv, args, step, finished)
        parts.append(f"{'train longer' if finished else 'resume'} with: {command}")
    elif step is not None or source not in (None, False, AUTO):
        parts.append(f"resume with: {command_text(options.argv)}")
    return "; ".join(parts)


def _evaluate_command(argv: Sequence[str]) -> str:
    """Return the command that evaluates what the command `argv` has trained."""
    arguments = without_options([each for each in argv[1:] if each != "--report"], RESUME)
    return shlex.join(["hexloop", "evaluate", *arguments])


def _resume_source(options: Namespace, arguments: TrainingArguments) -> str | bool | None:
    """Return the value of `--resume`, or of the argument `resume_from_checkpoint` if the option is not given."""
    chosen: str | bool | None = options.resume
    return arguments.resume_from_checkpoint if chosen is None else chosen


def _resume_problems(source: str | bool | None, arguments: TrainingArguments) -> Iterator[str]:
    """Report a checkpoint to resume from that is missing, or existing ones that a restart would take for the run's."""
    folder = str(arguments.output_dir)
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if source in (None, False) and restarts != "0" and checkpoint_steps(storage_for(folder)):
        yield (
            f"--resume: You chose to start a new run with up to {restarts} restarts, but {folder} already contains "
            "checkpoints, from which a restart would resume; use --resume auto to resume from them, or choose another "
            "output_dir."
        )
    if source is True and not checkpoint_steps(storage_for(folder)):
        yield (
            f"--resume: You chose to resume from the newest checkpoint, but there is none in {folder}; leave --resume "
            "out to train from the start, or set output_dir."
        )
    elif isinstance(source, str) and source != AUTO and is_missing(source):
        yield f"--resume: You chose to resume from {source!r}, but there is no such folder; name a checkpoint's folder."


def _resume_command(argv: Sequence[str], arguments: TrainingArguments, step: int, finished: bool) -> str:
    """Return the command `argv`, changed so that it resumes from the run's last checkpoint, that of `step`.

    The checkpoint is named only if the folder contains checkpoints of another run. For a run that has `finished`, the
    number of steps or epochs is doubled, as there is nothing left to do otherwise.
    """
    folder = str(arguments.output_dir)
    alone = len(runs_in(storage_for(folder))) <= 1
    source = ["--resume", *([] if alone else [joined(folder, checkpoint_name(step))])]
    if not finished:
        return command_text([*without_options(argv, RESUME), *source])
    if arguments.max_steps > 0:
        longer, value = "max_steps", str(2 * arguments.max_steps)
    else:
        longer, value = "num_train_epochs", f"{2 * arguments.num_train_epochs:g}"
    return command_text([*without_options(argv, (*RESUME, longer)), *source, f"--{longer}", value])


def _last_saved(trainer: hexloop.Trainer, progress: Progress) -> int | None:
    """Return the step of the run's last checkpoint.

    A run that ended in an error may not have reported it, nor does a run that had nothing left to do.
    """
    if trainer.outcome is not None and progress.published is not None:
        return progress.published
    storage = trainer.adapters.storage
    try:
        found = (read_manifest(storage, name) for name in map(checkpoint_name, checkpoint_steps(storage)))
        return next((manifest.step for manifest in found if manifest.run == progress.run), None)
    except (CheckpointError, StorageError):
        return progress.published


def _written_since(folder: str, shown: str, since: float) -> list[str]:
    """Return the result files that were written to a folder after `since`, in seconds since the epoch.

    shown: the folder as the user wrote it. Returns none if the folder is not on this machine.
    """
    if is_elsewhere(folder):
        return []
    folder = as_location(folder) if scheme_of(folder) else folder
    found = [
        os.path.join(shown, path.name)
        for path in sorted(Path(folder).glob("*"))
        if path.is_file() and path.name not in EARLIER.values() and not path.name.startswith(".")
        if path.stat().st_mtime >= since - 1
    ]
    events = [path for path in Path(folder).rglob("events.out.tfevents.*") if path.stat().st_mtime >= since - 1]
    return found + [f"`tensorboard --logdir {shlex.quote(shown)}`"] * bool(events)
