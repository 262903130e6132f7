"""A real `accelerate.Accelerator` behind the run: the processes and the device that both share, and a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.torch import accelerator as sharing
from hexloop.app.assembly.torch.tensors import clip_gradient_values, clip_gradients
from hexloop.app.environment import launched
from hexloop.domain.errors import ConfigurationError, RunStateError
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
    "mixed_precision": "set bf16, fp16 or fp8, or pass precision=... to the Trainer",
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
            run.signals = sharing.shown(run.signals)

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


@frozen
class LossWithOptions:
    """A loss whose backward pass takes keywords of torch's; engines multiply it and call `backward()`."""

    loss: Any
    options: Mapping[str, Any]

    def __mul__(self, factor: float) -> LossWithOptions:
        return LossWithOptions(self.loss * factor, self.options)

    def backward(self, **further: Any) -> None:
        """Run the backward pass. further: keywords of an engine's."""
        self.loss.backward(**{**self.options, **further})


class AcceleratorStep(SharedAccelerator):
    """The precision, the backward pass and the gradients of a run."""

    # Precision

    @property
    def mixed_precision(self) -> str:
        """The mixed precision: fp16, bf16, fp8 or no."""
        return sharing.mixed_precision(self._parts.adapters)

    def autocast(self, autocast_handler: Any = None) -> AbstractContextManager[Any]:
        """Return a context in which the model computes in the run's precision; close it before a hook returns.

        autocast_handler: accelerate's `AutocastKwargs`, which override the precision within the context.
        """
        if autocast_handler is not None:
            context: AbstractContextManager[Any] = self.real.autocast(autocast_handler)
            return context
        return sharing.under_precision(self._parts.adapters)

    @property
    def scaler(self) -> Any:
        """The loss scale of the run, with the methods of torch's GradScaler; None without one."""
        return sharing.loss_scale(self._parts.adapters)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last update did not change the weights, because a scaled gradient overflowed."""
        run = self._parts.run()
        if run is not None:
            return not run.update_taken
        return False if self._real is None else bool(self._real.optimizer_step_was_skipped)

    # The backward pass

    def backward(self, loss: Any, *, learning_rate: float | None = None, **kwargs: Any) -> None:
        """Add the gradients of `loss`, scaled as the precision requires, to those of the window.

        learning_rate: for LOMO, as accelerate takes it; the run sets it by its schedule.
        kwargs: of torch's `backward`, such as `retain_graph`. ConfigurationError is raised for them if the engine makes
        the backward pass itself. If assigned, a run calls the assigned function with the loss of every micro-batch.
        """
        adapters = self._parts.adapters
        capabilities = adapters.parallelism.capabilities
        if kwargs and capabilities.owns_update and not self._trains_prepared_model:
            raise ConfigurationError(
                f"accelerator.backward does not take {', '.join(kwargs)} under {capabilities.name}, which makes the "
                "backward pass itself. Add the losses and call it once, or call loss.backward(...) on a model that you "
                "prepared."
            )
        if capabilities.owns_update and self._trains_prepared_model:
            self.real.backward(loss, **kwargs)
            return
        sharing.step_scaled(adapters, self._parts.objects()[1])
        scaled = adapters.precision.scale(loss if self._divisor == 1 else loss / self._divisor)
        if self._trains_prepared_model:  # whose wrapper averages gradients by itself
            scaled.backward(**kwargs)
        else:
            adapters.parallelism.backward(LossWithOptions(scaled, kwargs) if kwargs else scaled)

    def assigned(self, name: str) -> Callable[..., Any] | None:
        """Return the function that was assigned to a method, which a run then calls; None if none was.

        `backward` also counts as assigned if it divides by assigned `gradient_accumulation_steps`.
        """
        if name == "backward" and self._divisor != 1:
            return self.backward
        found: Callable[..., Any] | None = vars(self).get(name)
        return found

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch is the last of its optimizer step."""
        run = self._parts.run()
        if run is not None:
            return bool(run.signals["sync_gradients"])
        return True if self._real is None else bool(self._real.sync_gradients)

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        if self._parts.run() is not None:
            raise RunStateError(
                f"accelerator.sync_gradients={value!r} cannot be assigned during a run, which sets it at every "
                "micro-batch; set gradient_accumulation_steps in the TrainingArguments."
            )
        self.real.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number by which `backward` divides the loss: 1, unless it is assigned.

        It is not the number of micro-batches of a window, which `gradient_accumulation_steps` of the arguments sets.
        """
        return self._divisor

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise ConfigurationError(f"accelerator.gradient_accumulation_steps={steps!r} must be a positive integer.")
        vars(self)["_divisor"] = steps
        if self._real is not None:
            self._real.gradient_accumulation_steps = steps

    @property
    def _trains_prepared_model(self) -> bool:
        """Whether there is no run, but a loop of user code, which trains what accelerate prepared."""
        return self._parts.run() is None and self._real is not None and bool(self._real._models)

    # Gradients

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide the gradients of an optimizer, or of several, by the loss scale, once in a step; no-op without one.

        optimizer: by default the run's optimizer and those that accelerate prepared.
        """
        if self.scaler is None:
            return
        if optimizer is None:
            prepared = [] if self._real is None else self._real._optimizers
            own = self._parts.objects()[1]
            optimizer = [*prepared, *([] if own is None else [own])]
        for each in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
            self._parts.adapters.precision.unscale(sharing.unwrapped_optimizer(each))

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip gradients to `max_norm` in place, unscaled; return their norm before.

        An engine that clips by itself, such as DeepSpeed, returns the norm of its last step. Raises ConfigurationError
        if this process has only a part of the gradients, and the parameters are not all of the run's model.
        """
        parallelism, parameters = self._parts.adapters.parallelism, list(parameters)
        model = getattr(self._parts.objects()[0], "_orig_mod", self._parts.objects()[0])
        if self._trains_prepared_model and (parallelism.capabilities.owns_update or parallelism.capabilities.sharded):
            return self.real.clip_grad_norm_(parameters, max_norm, norm_type)
        if parallelism.capabilities.owns_update:
            return model.get_global_grad_norm() if hasattr(model, "get_global_grad_norm") else self._refuse_clipping()
        if parallelism.capabilities.sharded and not any(hasattr(each, "full_tensor") for each in parameters):
            if hasattr(model, "clip_grad_norm_") and _same(model.parameters(), parameters):
                return model.clip_grad_norm_(max_norm, norm_type)
            self._refuse_clipping()
        self.unscale_gradients()
        norm = clip_gradients(parameters, max_norm, norm_type)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _refuse_clipping(self) -> NoReturn:
        name = self._parts.adapters.parallelism.capabilities.name
        raise ConfigurationError(
            f"accelerator.clip_grad_norm_ cannot clip under {name}, where "
            "each process has a part of the gradients; set max_grad_norm, by which the run clips, or pass "
            "trainer.model_wrapped.parameters()."
        )

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip the values of gradients in place, unscaled.

        Raises ConfigurationError if the engine clips by itself, or this process has only a part of the gradients.
        """
        capabilities = self._parts.adapters.parallelism.capabilities
        if capabilities.sharded or capabilities.owns_update:
            raise ConfigurationError(
                f"accelerator.clip_grad_value_ is not available under {capabilities.name}; set max_grad_norm, by which "
                "the run clips the norm."
            )
        self.unscale_gradients()
        clip_gradient_values(parameters, clip_value)


def _same(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Return whether two sequences have the same objects in the same order."""
    first, second = list(one), list(other)
    return len(first) == len(second) and all(each is its for each, its in zip(first, second, strict=True))
