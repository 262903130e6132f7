"""Waiting through a pause."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

ROUND = 1.0
"""Seconds after which a process that stands still tells the others so again."""


def wait_while_paused(trainer: Trainer) -> None:
    """Wait until nobody wants this run to stand still, or for a while where other processes wait to hear of it.

    They would take a process that says nothing for `ddp_timeout` seconds for lost.
    """
    alone = trainer.adapters.collectives.world_size == 1
    trainer._requests.wait_while_paused(None if alone else min(ROUND, trainer.args.ddp_timeout / 4))
