"""Arguments about what a run writes: logs, trackers, debugging, checkpoints, and the Hub."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

from hexloop.app.arguments.choices import (
    DebugOption,
    HubStrategy,
    HubText,
    IntervalStrategy,
    IntervalText,
    LogLevelText,
    SaveStrategy,
    SaveText,
    TokenCountText,
)
from hexloop.app.arguments.conversion import at_least, converter, one_of, steps_or_ratio
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.domain.wording import RefusalError

LOG_LEVELS = {
    "passive": -1,
    "detail": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
"""Levels of Python's logging by the names that arguments use; `passive` keeps the level that the application set."""


def _tracker_names(value: Any) -> Any:
    """Convert `report_to` to a list: empty for None and "none", else of one name or several."""
    if isinstance(value, str):
        names = converter.structure(value, list[str]) if value.startswith("[") else [value]
    else:
        names = value
    return [] if names is None or names == ["none"] else names


def _token_counting(value: Any) -> Any:
    """Convert True and False, which earlier releases took, to "all" and "no"."""
    old = {True: "all", False: "no", "true": "all", "false": "no"}
    return old.get(value.lower() if isinstance(value, str) else value, value)


@argument_group
class LoggingArguments(ArgumentGroup):
    """Logging."""

    logging_strategy: IntervalStrategy | IntervalText = argument(
        default="steps",
        help="when to log training metrics: no (never), steps (every logging_steps), epoch (at the end of each epoch)",
    )
    logging_steps: float = argument(
        default=500, check=steps_or_ratio, help="optimizer steps between logs; below 1, a ratio of the run"
    )
    logging_first_step: bool = argument(default=False, help="log the first optimizer step as well")
    logging_nan_inf_filter: bool = argument(
        default=True, help="in logs only, replace a non-finite loss by the mean of the others since the last log"
    )
    include_num_input_tokens_seen: TokenCountText | bool = argument(
        default="no",
        prepare=_token_counting,
        check=one_of("all", "non_padding", "no"),
        help="count the training tokens and log them: all, non_padding, or no",
    )
    report_to: None | str | list[str] = argument(  # noqa: RUF036 - transformers' parser reads the second type
        default="none", prepare=_tracker_names, help="names of the trackers to log to; all for every installed one"
    )
    run_name: str | None = argument(default=None, help="name of the run in trackers")
    logging_dir: str | None = argument(
        default=None, help="old: TensorBoard's folder; if unset, a new one in the output folder's runs/"
    )
    disable_tqdm: bool | None = argument(
        default=None, help="hide the progress bar; if unset, only if the level of hexloop's logger is above WARNING"
    )
    log_level: LogLevelText = argument(
        default="passive",
        check=one_of(*LOG_LEVELS),
        help="level of hexloop's logger: debug, info, warning, error, critical, or passive to keep the current one",
    )
    log_level_replica: LogLevelText = argument(
        default="warning", check=one_of(*LOG_LEVELS), help="the same in all processes of a run but the first"
    )
    log_on_each_node: bool = argument(default=True, help="let one process per machine log, not only one of the run")

    def _derive(self) -> None:
        super()._derive()
        if self.disable_tqdm is None:
            self.disable_tqdm = logging.getLogger("hexloop").getEffectiveLevel() > logging.WARNING
        if self.logging_steps >= 1:
            self.logging_steps = int(self.logging_steps)

    @rule("logging_strategy", "logging_steps")
    def _some_steps_between_logs(self) -> None:
        if self.logging_strategy == IntervalStrategy.STEPS and self.logging_steps == 0:
            raise RefusalError("logging_steps must be greater than 0", "give logging_steps a positive value")


def _false_or_name(value: Any) -> Any:
    return False if isinstance(value, str) and value.lower() == "false" else value


@argument_group
class TrackioArguments(ArgumentGroup):
    """Trackio, a tracker that `report_to` can name."""

    project: str = argument(default="huggingface", help="trackio project of the run")
    trackio_space_id: str | None = argument(
        default=None, help="space on the Hub that trackio logs to, such as name/space; on this machine if unset"
    )
    trackio_bucket_id: str | None = argument(
        default=None, help="bucket on the Hub with the data of trackio's space; chosen by trackio if unset"
    )
    trackio_static_space_id: str | None | Literal[False] = argument(  # noqa: RUF036 - as for report_to
        default=None, prepare=_false_or_name, help="space on the Hub for a static copy at the end; false for none"
    )


def _split_options(value: Any) -> Any:
    """Convert options separated by spaces, or None, to a list."""
    if isinstance(value, str) and not value.startswith("["):
        return value.split()
    return [] if value is None else value


@argument_group
class DebuggingArguments(ArgumentGroup):
    """Debugging."""

    debug: str | list[DebugOption] = argument(
        default="",
        prepare=_split_options,
        help="debug options, separated by spaces: underflow_overflow (report the first layer whose values overflow), "
        "tpu_metrics_debug (metrics of a TPU)",
    )


@argument_group
class SavingArguments(ArgumentGroup):
    """Checkpoints."""

    output_dir: str | None = argument(
        default=None, kw_only=False, help="folder for checkpoints and results; trainer_output if unset"
    )
    save_strategy: SaveStrategy | SaveText = argument(
        default="steps",
        help="when to write a checkpoint: no (never), steps (every save_steps), epoch (at the end of each epoch), "
        "best (when an evaluation is the best so far)",
    )
    save_steps: float = argument(
        default=500, check=steps_or_ratio, help="optimizer steps between checkpoints; below 1, a ratio of the run"
    )
    save_total_limit: int | None = argument(
        default=None,
        check=at_least(1),
        help="maximum number of this run's checkpoints to keep; the newest, with load_best_model_at_end the best, and "
        "those that contain a file named protected are always kept; no limit if unset",
    )
    save_only_model: bool = argument(
        default=False, help="write only the weights, without the optimizer, schedule and random generators"
    )
    save_on_each_node: bool = argument(
        default=False, help="let one process per machine write what save_model saves, instead of the first one only"
    )
    resume_from_checkpoint: str | None = argument(
        default=None, help="checkpoint, or auto for the newest, which scripts pass to Trainer.train"
    )
    ignore_data_skip: bool = argument(
        default=False, help="when resuming within an epoch, start at its first batch instead of the next one"
    )
    restore_callback_states_from_checkpoint: bool = argument(
        default=False, help="when resuming, restore the state of callbacks from the checkpoint"
    )
    enable_jit_checkpoint: bool = argument(
        default=False, help="at SIGTERM, finish the step, save and stop; the same as SIGTERM in interrupts"
    )

    def _derive(self) -> None:
        super()._derive()
        self.output_dir = os.path.expanduser("trainer_output" if self.output_dir is None else self.output_dir)
        if self.save_steps >= 1:
            self.save_steps = int(self.save_steps)

    @rule("save_strategy", "save_steps")
    def _some_steps_between_checkpoints(self) -> None:
        if self.save_strategy == SaveStrategy.STEPS and self.save_steps == 0:
            raise RefusalError("save_steps must be greater than 0", "give save_steps a positive value")


def _hidden_token_is_none(value: Any) -> Any:
    """Convert the placeholder that `to_dict` shows for a token to None."""
    return None if value == "<HUB_TOKEN>" else value


@argument_group
class HubArguments(ArgumentGroup):
    """Hub."""

    push_to_hub: bool = argument(default=False, help="publish the model on the Hub when it is saved")
    hub_model_id: str | None = argument(
        default=None, help="repository to publish to, such as name/model; named after the output folder if unset"
    )
    hub_strategy: HubStrategy | HubText = argument(
        default="every_save",
        help="what to publish: end (the final model), every_save (the model at each save), checkpoint (the newest "
        "checkpoint as well), all_checkpoints, best (the model of each save that is the best so far)",
    )
    hub_token: str | None = argument(
        default=None, prepare=_hidden_token_is_none, help="token to publish with, never shown; the login's if unset"
    )
    hub_private_repo: bool | None = argument(
        default=None, help="whether a new repository is private; the account's default if unset"
    )
    hub_always_push: bool = argument(
        default=False, help="publish each save, instead of only the newest of those that wait for an upload"
    )
    hub_revision: str | None = argument(default=None, help="branch of the repository to publish to")
