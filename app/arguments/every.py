"""All groups of arguments in one class."""

from __future__ import annotations

from hexloop.app.arguments.batches import Batches
from hexloop.app.arguments.best_model import BestModel
from hexloop.app.arguments.declare import argument_group
from hexloop.app.arguments.hardware import Hardware
from hexloop.app.arguments.memory import Memory
from hexloop.app.arguments.own import Own
from hexloop.app.arguments.precision import Precision
from hexloop.app.arguments.reproducibility import Reproducibility
from hexloop.app.arguments.saving import Saving


@argument_group
class EveryArgument(Own, Reproducibility, Hardware, Memory, Precision, BestModel, Batches, Saving):
    """Every argument of a run. The last base comes first in the order of the fields."""
