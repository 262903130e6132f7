"""What is published on the hub, where, and when."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.choices import HubStrategy
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


def _unhidden(value: Any) -> Any:
    """What `to_dict` shows in a token's place is none."""
    return None if value == "<HUB_TOKEN>" else value


@argument_group
class Hub(Arguments):
    """Hub."""

    push_to_hub: bool = argument(default=False, help="publish the model on the hub as it is saved")
    hub_model_id: str | None = argument(
        default=None,
        help="repository that is published to, such as name/model; if not given, called as the output folder",
    )
    hub_strategy: HubStrategy | str = argument(
        default="every_save",
        help="what is published: end (the final model), every_save (the model at each save), checkpoint (the newest "
        "checkpoint as well), all_checkpoints",
    )
    hub_token: str | None = argument(
        default=None,
        prepare=_unhidden,
        help="token to publish with; that of the hub's own login if not given; shown nowhere",
    )
    hub_private_repo: bool | None = argument(
        default=None, help="whether a repository that is made is private; as the account has it if not given"
    )
    hub_always_push: bool = argument(
        default=False, help="publish at each save, instead of leaving one out while the last is still under way"
    )
    hub_revision: str | None = argument(default=None, help="branch of the repository that is published to")
