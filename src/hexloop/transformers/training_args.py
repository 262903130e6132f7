"""Stands for transformers.training_args: hexloop's own names, and transformers' for the rest."""

from typing import TYPE_CHECKING, Any

from hexloop.app.takeover import stand_ins as _stand_ins

if TYPE_CHECKING:
    from hexloop.transformers import *


def __getattr__(name: str) -> Any:
    return _stand_ins.attribute(__name__, name)


def __dir__() -> list[str]:
    return _stand_ins.names(__name__)
