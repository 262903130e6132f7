"""Arguments about checkpoints, resuming, and publishing on the Hub."""

from __future__ import annotations

import os
from typing import Any

from hexloop.app.arguments.choices import HubStrategy, SaveStrategy
from hexloop.app.arguments.conversion import at_least, steps_or_ratio
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.domain.wording import RefusalError


@argument_group
class SavingArguments(ArgumentGroup):
    """Checkpoints."""

    output_dir: str | None = argument(
        default=None, kw_only=False, help="folder for checkpoints and results; trainer_output if unset"
    )
    save_strategy: SaveStrategy | str = argument(
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
    hub_strategy: HubStrategy | str = argument(
        default="every_save",
        help="what to publish: end (the final model), every_save (the model at each save), checkpoint (the newest "
        "checkpoint as well), all_checkpoints",
    )
    hub_token: str | None = argument(
        default=None, prepare=_hidden_token_is_none, help="token to publish with, never shown; the login's if unset"
    )
    hub_private_repo: bool | None = argument(
        default=None, help="whether a new repository is private; the account's default if unset"
    )
    hub_always_push: bool = argument(
        default=False, help="publish at each save, instead of skipping one while the last is still uploading"
    )
    hub_revision: str | None = argument(default=None, help="branch of the repository to publish to")
