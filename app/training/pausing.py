"""Waiting through a pause."""

from __future__ import annotations

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.requests import Requests

ROUND = 1.0
"""Seconds after which a process that stands still tells the others so again."""


def wait_while_paused(requests: Requests, args: TrainingArguments, world_size: int) -> None:
    """Wait until nobody wants this run to stand still, or for a while where other processes wait to hear of it.

    They would take a process that says nothing for `ddp_timeout` seconds for lost.
    """
    alone = world_size == 1
    requests.wait_while_paused(None if alone else min(ROUND, args.ddp_timeout / 4))
