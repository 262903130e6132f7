"""The stages of a run that subclasses of transformers' Trainer override, and what is logged and written of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hexloop.app.hooks import standard
from hexloop.app.overrides.stages import Finalized
from hexloop.app.run import saving
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import RunStateError
from hexloop.domain.events import TrainEnded
from hexloop.domain.loop import log_evaluate_save
from hexloop.ports.logger import MediaKind, Record


class TrainOutput(NamedTuple):
    """What `Trainer.train` returns: the steps done, the mean loss over them, and the metrics of the run.

    Args:
        global_step: optimizer steps done.
        training_loss: the mean loss over these steps.
        metrics: the metrics of the run by name.
    """

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class TrainerStages(TrainerAttributes):
    """The methods of the stages of `train`, each called if it is overridden, at the moment of transformers.

    Their standard versions do what belongs to the stage; `stream` yields no events of a stage that is overridden.
    """

    @standard
    def _update_auto_batch_size(self, batch_size: int) -> None:
        """Train on micro-batches of `batch_size` samples; called for each size that `auto_find_batch_size` tries."""
        self._train_batch_size = batch_size

    @standard
    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Return the epochs done, and the micro-batches of the current epoch, where the live run starts.

        If overridden, it is called once `state` is that of the run, and may change it; a run that resumes has then
        loaded its checkpoint. ConfigurationError is raised if it returns another position.
        """
        return self._live("_init_training_state").stages.position

    @standard
    def _run_epoch(
        self,
        model: Any = None,
        epoch: int = 0,
        train_dataloader: Any = None,
        steps_in_epoch: int | None = None,
        num_update_steps_per_epoch: int = 0,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        start_time: float = 0.0,
        resume_from_checkpoint: str | None = None,
        epochs_trained: int = 0,
        steps_trained_in_current_epoch: int = 0,
    ) -> None:
        """Train on the rest of an epoch, with what is due at its end. The live run has its own values of all arguments.

        If overridden, it is called for each epoch, and has to call this. Raises RunStateError at any other moment.
        """
        self._live("_run_epoch").stages.proceed("_run_epoch")

    @standard
    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save what is due at this boundary. Raises RunStateError if no run is live.

        If overridden, it is called after every optimizer step and every epoch, as one opaque action; what it does not
        do is not done. tr_loss: the sum of the losses since the last log, which sets it to zero in place.
        """
        run = self._live("_maybe_log_save_evaluate").run
        for event in log_evaluate_save(run):
            self._dispatcher.dispatch(event)
        if run.state.logged_step == run.state.step and hasattr(tr_loss, "zero_"):
            tr_loss.zero_()

    @standard
    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the totals of the run, load the best weights and call `on_train_end`; return the result of `train`.

        If overridden, it is called after the last epoch, and has to call this; `train` returns what it returns.
        Raises RunStateError at any other moment.
        """
        ended = self._live("_finalize_training").stages.proceed("_finalize_training")
        if not isinstance(ended, TrainEnded):
            raise RunStateError("The run ended without a result.")
        return output_of(ended)

    # Logs and results

    @standard
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the epoch to `logs`, append them to the history, and pass them to callbacks and loggers.

        Args:
            logs: the values by name.
            start_time: when training started, to log its speed.
        """
        state, session = self.state, self._session
        logs["epoch"] = state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            if session is not None:
                session.counters.settle()
            logs["num_input_tokens_seen"] = tokens = state.num_input_tokens_seen
            if session is not None and "loss" in logs:
                logs |= session.token_speed(tokens)
        state.log_history.append({**logs, "step": state.global_step})
        self.control.should_log = False
        self._dispatcher.call("on_log", logs=logs)
        if session is not None and (loggers := session.reporting.loggers) is not None:
            loggers.write(Record(state.global_step, state.epoch, dict(logs)))

    def log_media(
        self,
        name: str,
        value: Any,
        kind: MediaKind | None = None,
        *,
        caption: str | Sequence[str] = "",
        columns: Sequence[str] | None = None,
        rate: int | None = None,
        bins: int = 64,
    ) -> None:
        """Log an image, audio, a text, a table or a histogram at the present step of the live run.

        The value is taken as it is now, and everything else happens in the background: it is written to the folder of
        the run, where its page shows it, and passed to the trackers that take such media. Callbacks call
        `state.log_media`. Nothing happens between runs, and on processes that do not write. What cannot be logged is
        warned of once for each name, and never stops the run.

        Args:
            name: What it is shown under, such as `"samples"` or `"eval/attention"`. Media of one name are shown over
                the steps. A second value of the same name and step replaces the first.
            value: A text; an image of Pillow, a figure of matplotlib, or pixels as (height, width) or with 1, 3 or 4
                channels first or last, floats from 0 to 1 or integers from 0 to 255; rows as mappings, or as lists with
                `columns`, or a frame of pandas; numbers for a histogram, or a pair of counts and edges; samples of
                sound, (samples,) or (samples, channels), floats from -1 to 1 or integers. Arrays are those of numpy or
                tensors. A list of several of the same kind is logged together, at most 100.
            kind: Which of these it is. It may be left out if the type and the shape of the value say so: a text, an
                image or a figure, three dimensions (an image), one dimension (a histogram), rows (a table).
            caption: A line of text shown with it; a list for several.
            columns: The names of the columns of a table whose rows are lists.
            rate: Of audio, in samples a second.
            bins: Of a histogram.

        Examples:
            >>> from hexloop import StepEnded
            >>> for event in trainer.stream():
            ...     if isinstance(event, StepEnded) and event.step % 100 == 0:
            ...         trainer.log_media("weights", trainer.model.weight.flatten(), "histogram")
        """
        session = self._session
        if session is not None and (loggers := session.reporting.loggers) is not None:
            loggers.media.take(name, value, kind, caption=caption, columns=columns, rate=rate, bins=bins)

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print the metrics of a split ("train", "eval", "test") in aligned lines, formatted by `metrics_format`.

        Args:
            split: "train", "eval", "test", or another name.
            metrics: metrics by name.
        """
        if self.is_world_process_zero():
            print(saving.table(split, metrics))

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write `<split>_results.json` in the output folder.

        With `combined`, also add them to all_results.json, where they replace metrics of the same names.

        Args:
            split: "train", "eval", "test", or another name.
            metrics: metrics by name.
            combined: also add them to all_results.json.
        """
        if self.is_world_process_zero():
            saving.save_metrics(self._collect_parts(), split, metrics, combined)

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """Return a readable copy: memory in MB, floating-point operations in GF, times as h:mm:ss.cc, four decimals.

        Args:
            metrics: metrics by name.
        """
        return saving.readable(metrics)

    def save_state(self) -> None:
        """Write the state to trainer_state.json in the output folder."""
        if self.is_world_process_zero():
            saving.save_state(self._collect_parts())

    @staticmethod
    def num_tokens(train_dl: Any, max_steps: int | None = None) -> int:
        """Return the tokens of all batches of a loader, or `max_steps` times those of its first batch.

        Returns 0 with a warning if its batches have no "input_ids".

        Args:
            train_dl: the loader.
            max_steps: count the first batch this many times, instead of every batch.
        """
        return saving.count_tokens(train_dl, max_steps)

    def compare_trainer_and_checkpoint_args(self, training_args: Any, trainer_state: Any) -> None:
        """Log a warning for each interval or batch size that differs from the state of a checkpoint.

        Args:
            training_args: the arguments of the run.
            trainer_state: the state of the checkpoint.
        """
        saving.warn_of_differences(training_args, trainer_state, self._notices)


def output_of(ended: TrainEnded) -> TrainOutput:
    """Return what `train` returns: what an overridden `_finalize_training` did, or the totals of the run."""
    if isinstance(ended, Finalized):
        return cast(TrainOutput, ended.output)
    return TrainOutput(ended.step, ended.metrics["train_loss"], dict(ended.metrics))
