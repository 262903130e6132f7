"""A real `accelerate.Accelerator` behind the run, and the processes and the device that both share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.environment import launched
from hexloop.app.wiring import accelerator as wiring
from hexloop.app.wiring.adapters import Adapters
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.run import Run


@frozen
class AcceleratorParts:
    """What an accelerator needs of its Trainer.

    run: returns the live run, None between runs. owns: whether the run prepares an object itself; also asked with True
    for an object that is not trained. objects: returns the model, the optimizer and the schedule of the run as they are
    now. make: returns a new `accelerate.Accelerator`.
    """

    args: TrainingArguments
    adapters: Adapters
    run: Callable[[], Run[Any, Any] | None]
    owns: Callable[..., bool]
    objects: Callable[[], tuple[Any, Any, Any]]
    make: Callable[[], Any]


DECIDED = {
    "device": "pass device=... to the Trainer, or set use_cpu",
    **dict.fromkeys(
        ("process_index", "num_processes", "local_process_index", "is_main_process", "is_local_main_process"),
        "start the script with a launcher such as torchrun",
    ),
    "mixed_precision": "set bf16 or fp16, or pass precision=... to the Trainer",
    "scaler": "pass precision=... to the Trainer, an adapter that scales the loss as you want",
}
"""What the run decides, and how to change it instead of assigning it to the accelerator."""


class SharedAccelerator:
    """The run's processes and device. All other attributes are those of a real `accelerate.Accelerator`."""

    _parts: AcceleratorParts
    _real: Any  # the `accelerate.Accelerator`; None until it is needed
    _divisor: int

    def __init__(self, parts: AcceleratorParts, real: Any = None) -> None:
        steps = 1 if real is None else real.gradient_accumulation_steps
        vars(self).update(_parts=parts, _real=None, _divisor=steps)
        if real is not None:
            self._use(real)

    # The real Accelerator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in SharedAccelerator.__annotations__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DECIDED:
            raise ConfigurationError(
                f"accelerator.{name}={value!r} cannot be assigned, because the run decides it; {DECIDED[name]}."
            )
        if hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self.real, name, value)

    def __deepcopy__(self, memo: Any) -> SharedAccelerator:
        return self

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(() if self._real is None else dir(self._real))})

    @property
    def real(self) -> Any:
        """The `accelerate.Accelerator`, made on first access."""
        if self._real is None:
            self._use(self._parts.make())
        return self._real

    @property
    def is_made(self) -> bool:
        """Whether the `accelerate.Accelerator` exists."""
        return self._real is not None

    def _use(self, real: Any) -> None:
        vars(self)["_real"] = real
        real.gradient_accumulation_steps = self._divisor
        self.follow(self._parts.run())

    def follow(self, run: Run[Any, Any] | None) -> None:
        """Let accelerate's `GradientState`, if there is one, show what a run does."""
        if run is not None:
            run.signals = wiring.shown(run.signals)

    # Processes and device

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return torch.device(self._parts.adapters.device.name)

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self._parts.adapters.collectives.rank

    @property
    def num_processes(self) -> int:
        """The number of processes of the run."""
        return self._parts.adapters.collectives.world_size

    @property
    def local_process_index(self) -> int:
        """The rank of this process among those of its machine."""
        return launched().local_rank if self.num_processes > 1 else 0

    @property
    def is_main_process(self) -> bool:
        """Whether this process is the first of the run."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process is the first of its machine."""
        return self.local_process_index == 0

    def wait_for_everyone(self) -> None:
        """Wait for all processes."""
        self._parts.adapters.collectives.barrier("wait_for_everyone")

    def print(self, *values: Any, **options: Any) -> None:
        """Print in the first process of each machine only."""
        if self.is_local_main_process:
            print(*values, **options)
