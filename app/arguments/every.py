"""All groups of arguments in one class."""

from __future__ import annotations

from hexloop.app.arguments.accelerator_config import AcceleratorSettings
from hexloop.app.arguments.batches import Batches
from hexloop.app.arguments.best_model import BestModel
from hexloop.app.arguments.debugging import Debugging
from hexloop.app.arguments.declare import argument_group
from hexloop.app.arguments.hardware import Hardware
from hexloop.app.arguments.hub import Hub
from hexloop.app.arguments.kernels import Kernels
from hexloop.app.arguments.memory import Memory
from hexloop.app.arguments.own import Own
from hexloop.app.arguments.precision import Precision
from hexloop.app.arguments.processes import Processes
from hexloop.app.arguments.reproducibility import Reproducibility
from hexloop.app.arguments.saving import Saving
from hexloop.app.arguments.sharding import Sharding
from hexloop.app.arguments.trackio import Trackio


@argument_group
class EveryArgument(
    Own,
    Debugging,
    Hub,
    Sharding,
    Processes,
    Reproducibility,
    Hardware,
    Kernels,
    Memory,
    Precision,
    Trackio,
    BestModel,
    AcceleratorSettings,
    Batches,
    Saving,
):
    """Every argument of a run. The last base comes first in the order of the fields."""
