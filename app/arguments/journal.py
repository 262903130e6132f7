"""What a run writes down of itself."""

from __future__ import annotations

from hexloop.app.arguments.checks import one_of
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


@argument_group
class Journal(Arguments):
    """The run's journal.

    journal: what goes into `journal.jsonl` in the output folder, by which `hexloop runs diff` finds out where two runs
        part. `events`: each log, each phase of each save, with fingerprints of the random streams and of the saved
        weights; nothing of it is done at a step that does neither, and a run with save_strategy="no", which is to write
        nothing, keeps none. `steps`: also, of every step, fingerprints of its batch and of the random streams, its
        learning rate and its loss, which is read from the device with the next log. `off`: no journal.
    """

    journal: str = argument(
        default="events",
        checks=(one_of("off", "events", "steps"),),
        help="what is written to journal.jsonl in output_dir for `hexloop runs diff`: off (nothing), events (logs and "
        "saves), steps (each step as well)",
    )
