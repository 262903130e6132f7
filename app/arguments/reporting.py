"""What is logged, when, and to whom."""

from __future__ import annotations

import logging
from typing import Any

from hexloop.app.arguments.checks import one_of, steps_or_ratio
from hexloop.app.arguments.choices import IntervalStrategy
from hexloop.app.arguments.conversion import converter
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.group import Arguments
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
"""Levels of Python's logging by the names that arguments use; `passive` leaves the level as the application set it."""


def _tracker_names(value: Any) -> Any:
    """`report_to` as a list: nobody for None and "none", one name, or several."""
    if isinstance(value, str):
        names = converter.structure(value, list[str]) if value.startswith("[") else [value]
    else:
        names = value
    return [] if names is None or names == ["none"] else names


def _token_counting(value: Any) -> Any:
    """True and False are old spellings of "all" and "no"."""
    old = {True: "all", False: "no", "true": "all", "false": "no"}
    return old.get(value.lower() if isinstance(value, str) else value, value)


@argument_group
class Reporting(Arguments):
    """Logging."""

    logging_strategy: IntervalStrategy | str = argument(
        default="steps", help="when training is logged: no (never), steps (every logging_steps), epoch (as each ends)"
    )
    logging_steps: float = argument(
        default=500,
        checks=(steps_or_ratio,),
        help="optimizer steps from one log to the next; below 1, a ratio of the whole run",
    )
    logging_first_step: bool = argument(default=False, help="log the first optimizer step as well")
    logging_nan_inf_filter: bool = argument(
        default=True,
        help="in logs, count a loss that is not finite as the mean of the others since the last log; training itself "
        "is unaffected",
    )
    include_num_input_tokens_seen: str | bool = argument(
        default="no",
        prepare=_token_counting,
        checks=(one_of("all", "non_padding", "no"),),
        help="count the tokens trained on, and log them: all, non_padding, or no",
    )
    report_to: None | str | list[str] = argument(  # noqa: RUF036 - the reference's parser reads the second type
        default="none",
        prepare=_tracker_names,
        help="trackers that receive the logs, by name; all for every one that is installed, none for nobody",
    )
    run_name: str | None = argument(default=None, help="name of the run, as trackers show it")
    logging_dir: str | None = argument(
        default=None,
        help="old: TensorBoard's folder; a new one for each run, in runs/ of the output folder, if not given",
    )
    disable_tqdm: bool | None = argument(
        default=None, help="show no progress bar; if not given, only when hexloop's logger is quieter than warnings"
    )
    log_level: str = argument(
        default="passive",
        checks=(one_of(*LOG_LEVELS),),
        help="how much the library says in Python's logging: debug, info, warning, error, critical, or passive to "
        "leave it as it is",
    )
    log_level_replica: str = argument(
        default="warning", checks=(one_of(*LOG_LEVELS),), help="the same in every process of a run but the first"
    )
    log_on_each_node: bool = argument(
        default=True, help="let one process of every machine log, instead of one process of the run"
    )

    def _settle(self) -> None:
        super()._settle()
        if self.disable_tqdm is None:
            self.disable_tqdm = logging.getLogger("hexloop").getEffectiveLevel() > logging.WARNING
        if self.logging_steps >= 1:
            self.logging_steps = int(self.logging_steps)

    @rule("logging_strategy", "logging_steps")
    def _some_steps_between_logs(self) -> None:
        if self.logging_strategy == IntervalStrategy.STEPS and self.logging_steps == 0:
            raise RefusalError("no number of steps lies between two logs", "give logging_steps a positive value")
