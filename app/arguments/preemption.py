"""What may stop a run before its end, so that it saves and can be gone on with."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.checks import above_zero, at_least, each_one_of
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.group import Arguments
from hexloop.domain.wording import RefusalError

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""The signals that may ask a run to stop; loader workers pass over all of them."""


def _signal_names(value: Any) -> Any:
    """One name stands for a list of it."""
    return [value] if isinstance(value, str) and not value.startswith("[") else value


@argument_group
class Preemption(Arguments):
    """What stops a run before its end.

    Each of these lets the optimizer step in hand end, saves a checkpoint, and ends the run, which then says so
    (`Trainer.outcome`; the command line's exit code 3). None of them is listened to unless it is asked for.

    interrupts: the signals that stop the run, by name; the second coming of one stops it at once. Python hands signals
        to a program's main thread only, so the run has to begin there. The command line listens to SIGINT and SIGTERM
        where this is not given, and an empty list says that none is to be listened to.
    stop_file: touching this file stops the run. One that is there already does not.
    stop_after, stop_margin: the run stops so many seconds after the Trainer was made, less the margin, in which the
        step in hand and the save have to fit.
    """

    interrupts: list[str] | None = argument(
        default=None,
        prepare=_signal_names,
        checks=(each_one_of(*SIGNALS),),
        help=f"signals at which the run saves and stops, out of {', '.join(SIGNALS)} (on the command line SIGINT and "
        "SIGTERM if not given, else none)",
    )
    stop_file: str | None = argument(default=None, help="file whose being touched lets the run save and stop")
    stop_after: float | None = argument(
        default=None, checks=(above_zero,), help="seconds after which the run saves and stops, less stop_margin"
    )
    stop_margin: float = argument(
        default=60.0, checks=(at_least(0),), help="seconds before stop_after that are left for a last step and a save"
    )

    @rule("stop_after", "stop_margin")
    def _some_time_before_the_deadline(self) -> None:
        if self.stop_after is not None and self.stop_margin >= self.stop_after:
            raise RefusalError(
                "the margin leaves no time to train", "choose a later deadline, or a smaller stop_margin"
            )
