"""What the tracker trackio is told."""

from __future__ import annotations

from typing import Any, Literal

from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


def _false(value: Any) -> Any:
    return False if isinstance(value, str) and value.lower() == "false" else value


@argument_group
class Trackio(Arguments):
    """Trackio, a tracker that `report_to` can name."""

    project: str = argument(default="huggingface", help="project that trackio files the run under")
    trackio_space_id: str | None = argument(
        default=None,
        help="space on the hub that trackio sends to, such as name/space; kept on this machine if not given",
    )
    trackio_bucket_id: str | None = argument(
        default=None, help="bucket on the hub that trackio keeps a space's data in; chosen by trackio if not given"
    )
    trackio_static_space_id: str | None | Literal[False] = argument(  # noqa: RUF036 - as for report_to
        default=None,
        prepare=_false,
        help="space on the hub that trackio puts a fixed copy of the run in when training ends; false for none",
    )
