"""`trainer.accelerator`: the run with the interface of accelerate's Accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import torch
from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.environment import launched
from hexloop.app.wiring import accelerator as wiring
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.tensors import TensorsOfProcesses, holds_only_tensors
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.run import Run


@frozen
class AcceleratorParts:
    """What an accelerator needs of its Trainer.

    run: returns the live run, None between runs. owns: whether the run prepares an object itself. objects: returns the
    model, the optimizer and the schedule of the run as they are now. make: returns a new `accelerate.Accelerator`.
    """

    args: TrainingArguments
    adapters: Adapters
    run: Callable[[], Run[Any, Any] | None]
    owns: Callable[[object], bool]
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


class Accelerator:
    """The run as an Accelerator: its device, its processes, its precision and its objects.

    Everything else comes from a real `accelerate.Accelerator` over the same process group and device, which is made
    when it is first needed. Methods can be assigned; what the run decides cannot. docs/accelerator.md has the details.
    """

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
        if name.startswith("__") or name in Accelerator.__annotations__:
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

    def __deepcopy__(self, memo: Any) -> Accelerator:
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
        """Let accelerate's `GradientState` show a run's `sync_gradients`, once there is an `accelerate.Accelerator`."""
        if self._real is not None and run is not None:
            run.signals = wiring.follow(run.signals)

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

    # A step

    @property
    def mixed_precision(self) -> str:
        """The mixed precision: fp16, bf16 or no."""
        return wiring.mixed_precision(self._parts.adapters)

    def autocast(self, autocast_handler: Any = None) -> AbstractContextManager[Any]:
        """Return a context in which the model computes in the run's precision; close it before a hook returns.

        autocast_handler: accelerate's `AutocastKwargs`, which override the precision within the context.
        """
        if autocast_handler is not None:
            context: AbstractContextManager[Any] = self.real.autocast(autocast_handler)
            return context
        return wiring.under_precision(self._parts.adapters)

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of `loss`, scaled as the precision requires, to those of the window.

        If assigned, every step of a run calls the assigned function with its loss. Raises ConfigurationError for
        keywords of torch's `backward`.
        """
        if kwargs:
            raise ConfigurationError(
                f"accelerator.backward does not take {', '.join(kwargs)}, because the run's engine makes the backward "
                "pass. Add the losses and call it once, or call loss.backward(...) on a model that you prepared."
            )
        adapters = self._parts.adapters
        divided = loss if self._divisor == 1 else loss / self._divisor
        adapters.parallelism.backward(adapters.precision.scale(divided))

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
        """Whether the gradients of the present micro-batch are those of an optimizer step."""
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
        """What `backward` divides the loss by, 1 unless assigned.

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
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last update did not change the weights, because a scaled gradient overflowed."""
        run = self._parts.run()
        if run is not None:
            return not run.update_taken
        return False if self._real is None else bool(self._real.optimizer_step_was_skipped)

    @property
    def scaler(self) -> Any:
        """The loss scale of the run, with the methods of torch's GradScaler; None without one."""
        return self.real.scaler if self.mixed_precision == "fp16" else None

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip gradients to `max_norm` in place; return their norm before.

        With fp16 the gradients must be unscaled, as they are where the run clips. Raises ConfigurationError if no
        process has the whole gradients.
        """
        capabilities, parameters = self._parts.adapters.parallelism.capabilities, list(parameters)
        whole = not capabilities.sharded or any(hasattr(each, "full_tensor") for each in parameters)
        if capabilities.owns_update or not whole:
            raise ConfigurationError(
                f"accelerator.clip_grad_norm_ cannot clip under {capabilities.name}, where each process has a part of "
                "the gradients; set max_grad_norm, by which the run clips."
            )
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    # Models, loaders, optimizers, schedules

    def prepare(self, *objects: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, loaders, optimizers and schedules, and return them in order.

        Those of the run are returned unchanged, because the run prepares them. accelerate prepares all others: a loader
        then moves its batches to the device and shares them among the processes, a model is moved and wrapped.
        """
        places = [None] * len(objects) if device_placement is None else device_placement
        others = [each for each in objects if self._is_foreign(each)]
        if not others:
            return objects[0] if len(objects) == 1 else objects
        given = [place for each, place in zip(objects, places, strict=True) if self._is_foreign(each)]
        prepared = self.real.prepare(*others, device_placement=None if device_placement is None else given)
        following = iter([prepared] if len(others) == 1 else prepared)
        found = tuple(next(following) if self._is_foreign(each) else each for each in objects)
        return found[0] if len(found) == 1 else found

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """Return a model on the device, wrapped for training unless `evaluation_mode`; the run's model unchanged."""
        return model if self._parts.owns(model) else self.real.prepare_model(model, device_placement, evaluation_mode)

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None, **options: Any) -> Any:
        """Return a loader of this process's batches, on the device; a loader of the run unchanged."""
        if self._parts.owns(data_loader):
            return data_loader
        return self.real.prepare_data_loader(data_loader, device_placement, **options)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Return an optimizer that skips micro-batches between updates; the run's optimizer unchanged."""
        return optimizer if self._parts.owns(optimizer) else self.real.prepare_optimizer(optimizer, device_placement)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Return a schedule that steps with its prepared optimizer; the run's schedule unchanged."""
        return scheduler if self._parts.owns(scheduler) else self.real.prepare_scheduler(scheduler)

    def _is_foreign(self, candidate: Any) -> bool:
        return not self._parts.owns(candidate) and wiring.is_preparable(candidate)

    def unwrap_model(self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """Return the model as the user passed it, without the wrappers of the run or of `prepare`."""
        if self._real is not None and not self._parts.owns(model):
            return self._real.unwrap_model(model, keep_fp32_wrapper, keep_torch_compile)
        return self._parts.adapters.parallelism.unwrap(getattr(model, "_orig_mod", model))

    def free_memory(self, *objects: Any) -> list[Any]:
        """Release the memory that the device's allocator caches, and what accelerate prepared; return Nones."""
        if self._real is not None:
            self._real.free_memory()
        self._parts.adapters.device.release_memory()
        return [None] * len(objects)

    clear = free_memory

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        """Write the run's model, optimizer and schedule, and what accelerate prepared, in accelerate's format."""
        with self._with_objects_of_run("save_state"):
            return self.real.save_state(*args, **kwargs)

    def load_state(self, *args: Any, **kwargs: Any) -> None:
        """Load what `save_state` wrote. The position of a run in its data and its step are not part of that."""
        with self._with_objects_of_run("load_state"):
            self.real.load_state(*args, **kwargs)

    @contextmanager
    def _with_objects_of_run(self, method: str) -> Iterator[None]:
        capabilities = self._parts.adapters.parallelism.capabilities
        if capabilities.sharded or capabilities.owns_state:
            raise ConfigurationError(
                f"accelerator.{method} does not know the state of {capabilities.name}; save checkpoints with "
                "save_strategy or trainer.request_save(), and resume with resume_from_checkpoint."
            )
        model, optimizer, scheduler = self._parts.objects()
        with wiring.with_objects_of_run(self.real, [model], optimizer, scheduler):
            yield

    # Tensors of all processes

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all processes, concatenated; scalars become rows. Raises TypeError for other values."""
        return self._tensors.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return the values of all processes, without the rows that a prepared loader repeated in its last batch.

        Values other than tensors must be lists, whose elements are gathered.
        """
        if self.num_processes == 1:
            return input_data
        if use_gather_object or not holds_only_tensors(input_data):
            return self.real.gather_for_metrics(input_data, use_gather_object=True)
        gathered = self.gather(input_data)
        return gathered if self._real is None else wiring.without_repeated_rows(self._real, gathered)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the "sum" or "mean" of the tensors of all processes, or with "none" this process's, times `scale`."""
        return self._tensors.reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return the tensors of this process, padded with `pad_index` to the longest of all processes in `dim`."""
        return self._tensors.pad(tensor, dim, pad_index, pad_first)

    @property
    def _tensors(self) -> TensorsOfProcesses:
        return TensorsOfProcesses(self._parts.adapters.device.name, self.num_processes)


def _sharing_setting(name: str) -> Any:
    """Return a property that reads and sets a key of `accelerator_config`, which loaders of the run follow, too."""

    def get(self: Accelerator) -> Any:
        return getattr(self._parts.args.accelerator_config, name)

    def set_(self: Any, value: Any) -> None:
        self._parts.args.accelerator_config.assign(name, value)
        if self._real is not None:
            setattr(self._real.dataloader_config, name, value)

    return property(get, set_, doc=f"`{name}` of `accelerator_config`; assigned, loaders made from then on follow it.")


for _name in wiring.SHARING:
    setattr(Accelerator, _name, _sharing_setting(_name))


def adopted(parts: AcceleratorParts, assigned: Any) -> Any:
    """Return what `trainer.accelerator` is after an assignment.

    An `accelerate.Accelerator` becomes the real one of an accelerator of the run; the methods that its class overrides
    are called instead of the run's. Any other object is used as it is.
    Raises ConfigurationError if the Accelerator has other processes, or another device or precision, than the run.
    """
    if not wiring.is_accelerator(assigned):
        return assigned
    wiring.refuse_other_accelerator(assigned, parts.args, parts.adapters)
    made = Accelerator(parts, assigned)
    vars(made).update({name: getattr(assigned, name) for name in wiring.overridden(assigned) if name in METHODS})
    return made


METHODS = frozenset(
    name for name, value in vars(Accelerator).items() if not name.startswith("_") and isinstance(value, FunctionType)
) - {"follow", "assigned"}
"""The methods of accelerate's Accelerator that the run implements."""
