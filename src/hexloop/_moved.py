"""Old paths of modules that have moved, kept importable for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "hexloop.adapters.batches.in_memory": "hexloop.adapters.batches",
    "hexloop.adapters.clock.manual": "hexloop.adapters.clock",
    "hexloop.adapters.clock.system": "hexloop.adapters.clock",
    "hexloop.adapters.collectives.simulated.faults": "hexloop.adapters.collectives.simulated",
    "hexloop.adapters.collectives.simulated.outcome": "hexloop.adapters.collectives.simulated",
    "hexloop.adapters.collectives.simulated.world": "hexloop.adapters.collectives.simulated",
    "hexloop.adapters.collectives.single": "hexloop.adapters.collectives",
    "hexloop.adapters.collectives.torch.collectives": "hexloop.adapters.collectives.torch",
    "hexloop.adapters.device.torch.base": "hexloop.adapters.device.torch",
    "hexloop.adapters.device.torch.cpu": "hexloop.adapters.device.torch",
    "hexloop.adapters.device.torch.cuda": "hexloop.adapters.device.torch",
    "hexloop.adapters.device.torch.mps": "hexloop.adapters.device.torch",
    "hexloop.adapters.evaluator.least_squares": "hexloop.adapters.evaluator",
    "hexloop.adapters.evaluator.torch.outputs": "hexloop.adapters.evaluator.torch.predictions",
    "hexloop.adapters.hub.folder": "hexloop.adapters.hub",
    "hexloop.adapters.hub.memory": "hexloop.adapters.hub",
    "hexloop.adapters.interrupts.manual": "hexloop.adapters.interrupts",
    "hexloop.adapters.interrupts.polling": "hexloop.adapters.interrupts",
    "hexloop.adapters.interrupts.several": "hexloop.adapters.interrupts",
    "hexloop.adapters.interrupts.signals": "hexloop.adapters.interrupts",
    "hexloop.adapters.journal.json_lines": "hexloop.adapters.journal",
    "hexloop.adapters.journal.memory": "hexloop.adapters.journal",
    "hexloop.adapters.logger.recording": "hexloop.adapters.logger",
    "hexloop.adapters.losses.plain": "hexloop.adapters.losses",
    "hexloop.adapters.parallelism.torch.ddp": "hexloop.adapters.engines.ddp.engine",
    "hexloop.adapters.scheduler.constant": "hexloop.adapters.scheduler",
    "hexloop.adapters.scheduler.torch.factories": "hexloop.adapters.scheduler.torch",
    "hexloop.adapters.scheduler.torch.scheduler": "hexloop.adapters.scheduler.torch",
    "hexloop.adapters.scheduler.torch.stages": "hexloop.adapters.scheduler.torch",
    "hexloop.adapters.storage.fsspec.storage": "hexloop.adapters.storage.fsspec",
    "hexloop.adapters.storage.local.storage": "hexloop.adapters.storage.local",
    "hexloop.adapters.trainable.least_squares.model": "hexloop.adapters.trainable.least_squares",
    "hexloop.adapters.trainable.least_squares.momentum": "hexloop.adapters.trainable.least_squares",
    "hexloop.adapters.trainable.least_squares.sharded": "hexloop.adapters.trainable.sharded_least_squares",
    "hexloop.adapters.trainable.least_squares.trainable": "hexloop.adapters.trainable.least_squares",
    "hexloop.adapters.trainable.torch.numbering": "hexloop.adapters.trainable.torch.parameter_groups",
    "hexloop.adapters.trainable.torch.optimizer_table": "hexloop.adapters.trainable.torch.optimizers",
    "hexloop.app.arguments.evaluation": "hexloop.app.arguments.optimization",
    "hexloop.app.arguments.reporting": "hexloop.app.arguments.outputs",
    "hexloop.app.arguments.saving": "hexloop.app.arguments.outputs",
    "hexloop.app.callbacks.early_stopping": "hexloop.app.callbacks.flow",
    "hexloop.app.callbacks.exportable": "hexloop.app.callbacks.trainer_state",
    "hexloop.domain.checkpoints.pruning": "hexloop.domain.checkpoints.survey",
    "hexloop.domain.order.grouped": "hexloop.domain.order.permutation",
    "hexloop.domain.plan": "hexloop.domain.triggers",
    "hexloop.domain.schedules.build": "hexloop.domain.schedules",
    "hexloop.ports.files": "hexloop.ports.storage",
}
"""From a module of release 0.1.0 that the docs named to the module that defines its public names now."""

PACKAGES = {name.rsplit(".", depth)[0] for name in MOVED for depth in (1, 2, 3)}


class MovedModules:
    """Finds the modules in MOVED. Comes last in `sys.meta_path`, so it is asked only for modules that do not exist."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old path, or for a package that contained one."""
        if fullname not in MOVED and fullname not in PACKAGES:
            return None
        loader: Any = self  # importlib.abc.Loader would triple the time of `import hexloop`
        return ModuleSpec(fullname, loader, is_package=fullname in PACKAGES)

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default."""

    def exec_module(self, module: ModuleType) -> None:
        """Look up every attribute in the new module."""
        new = MOVED.get(module.__name__)
        if new is not None:
            warnings.warn(
                f"{module.__name__} has moved to {new}. The old path will be removed in the next release.",
                FutureWarning,
                stacklevel=2,
            )
            vars(module)["__getattr__"] = partial(getattr, import_module(new))


def install() -> None:
    """Make the old paths importable."""
    sys.meta_path.append(MovedModules())
