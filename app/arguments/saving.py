"""Where a run's files go, when checkpoints are written, and how a run is taken up again."""

from __future__ import annotations

import os

from hexloop.app.arguments.checks import at_least, steps_or_ratio
from hexloop.app.arguments.choices import SaveStrategy
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.group import Arguments
from hexloop.domain.wording import RefusalError


@argument_group
class Saving(Arguments):
    """Checkpoints."""

    output_dir: str | None = argument(
        default=None,
        kw_only=False,
        help="folder that the run's checkpoints and results are written to; trainer_output if none is given",
    )
    save_strategy: SaveStrategy | str = argument(
        default="steps",
        help="when a checkpoint is written: no (never), steps (every save_steps), epoch (as each ends), "
        "best (when an evaluation beats all before it)",
    )
    save_steps: float = argument(
        default=500,
        checks=(steps_or_ratio,),
        help="optimizer steps from one checkpoint to the next; below 1, a ratio of the whole run",
    )
    save_total_limit: int | None = argument(
        default=None,
        checks=(at_least(1),),
        help="how many of this run's checkpoints are kept, the newest and, with load_best_model_at_end, the best, and "
        "those with a file named protected in them; all if none is given",
    )
    save_only_model: bool = argument(
        default=False,
        help="write the weights alone, without what a resumed run needs (optimizer, schedule, random streams)",
    )
    save_on_each_node: bool = argument(
        default=False, help="let one process of every machine write what save_model is asked for, not the first alone"
    )
    resume_from_checkpoint: str | None = argument(
        default=None,
        help="checkpoint that a script should go on from, or auto for the newest if there is one; the script hands it "
        "to Trainer.train, which goes by what it is handed",
    )
    ignore_data_skip: bool = argument(
        default=False,
        help="on resuming inside an epoch, start at the epoch's first batch again instead of at the one that was next",
    )
    restore_callback_states_from_checkpoint: bool = argument(
        default=False, help="on resuming, put callbacks back into the state that the checkpoint holds of them"
    )
    enable_jit_checkpoint: bool = argument(
        default=False, help="at SIGTERM, finish the step, save and stop; the same as SIGTERM among the interrupts"
    )

    def _settle(self) -> None:
        super()._settle()
        self.output_dir = os.path.expanduser("trainer_output" if self.output_dir is None else self.output_dir)
        if self.save_steps >= 1:
            self.save_steps = int(self.save_steps)

    @rule("save_strategy", "save_steps")
    def _some_steps_between_checkpoints(self) -> None:
        if self.save_strategy == SaveStrategy.STEPS and self.save_steps == 0:
            raise RefusalError("no number of steps lies between two checkpoints", "give save_steps a positive value")
