"""`trainer.accelerator`: the run with the interface of accelerate's Accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from hexloop.app.assembly.torch import accelerator as sharing
from hexloop.app.assembly.torch.model import unwrapped
from hexloop.app.assembly.torch.tensors import TensorsOfProcesses, exchange_device, holds_only_tensors
from hexloop.app.trainer.shared_accelerator import AcceleratorParts, AcceleratorStep
from hexloop.domain.errors import ConfigurationError


class Accelerator(AcceleratorStep):
    """The run as an Accelerator: its device, its processes, its precision and its objects.

    Everything else comes from a real `accelerate.Accelerator` over the same process group and device, which is made
    when it is first needed. Methods can be assigned; what the run decides cannot. docs/accelerator.md has the details.
    """

    # Models, loaders, optimizers, schedules

    def prepare(self, *objects: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, loaders, optimizers and schedules, and return them in order.

        Those of a run are returned unchanged, because the run prepares them. accelerate prepares all others; without a
        run, also the Trainer's model, optimizer and schedule, which a loop of user code then trains. A prepared loader
        moves its batches to the device and shares them among the processes; a model is moved and wrapped.
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
        if self._parts.owns(model, evaluation_mode):
            return model
        return self.real.prepare_model(model, device_placement, evaluation_mode)

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
        return not self._parts.owns(candidate) and sharing.is_preparable(candidate)

    def unwrap_model(self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """Return the model without the wrappers of the run or of `prepare`, and without the user's own."""
        if self._real is not None and not self._parts.owns(model, True):
            return self._real.unwrap_model(model, keep_fp32_wrapper, keep_torch_compile)
        return unwrapped(self._parts.adapters.parallelism.unwrap(getattr(model, "_orig_mod", model)))

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Return the weights of a model by name; if it is sharded, all processes call this and the first one has them.

        unwrap: without the wrappers of a model that is not sharded.
        """
        own, adapters = self._parts.objects()[0], self._parts.adapters
        if adapters.parallelism.capabilities.own_exchange and self._parts.owns(model, True):
            return sharing.gathered_weights(adapters, own)
        return sharing.whole_weights(self.real, own if self._parts.owns(model, True) else model, unwrap)

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
        with sharing.with_objects_of_run(self.real, [model], optimizer, scheduler):
            yield

    # Tensors of all processes

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all processes, concatenated; scalars become rows. Raises TypeError for other values."""
        return self._tensors.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return the values of all processes, without the rows that a prepared loader repeated in its last batch.

        Values other than tensors must be lists, whose elements are gathered.
        """
        by_objects = use_gather_object or not holds_only_tensors(input_data)
        if self.num_processes == 1:
            gathered = input_data
        elif by_objects:
            gathered = sharing.gathered_objects(self._parts.adapters, input_data)
        else:
            gathered = self.gather(input_data)
        return sharing.without_repeated_rows(gathered, by_objects)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the "sum", "mean" or "max" of the tensors of all processes, or with "none" this process's.

        scale: multiplies them on devices of XLA, if there are several processes; ignored elsewhere, as by accelerate.
        """
        scales = scale != 1.0 and self.num_processes > 1 and self._parts.adapters.device.capabilities.records
        return self._tensors.reduce(tensor, reduction, scale if scales and reduction != "none" else 1.0)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return the tensors of this process, padded with `pad_index` to the longest of all processes in `dim`."""
        return self._tensors.pad(tensor, dim, pad_index, pad_first)

    @property
    def _tensors(self) -> TensorsOfProcesses:
        adapters = self._parts.adapters
        return TensorsOfProcesses(adapters.device.name, self.num_processes, exchange_device(adapters))


def _sharing_setting(name: str) -> Any:
    """Return a property that reads and sets a key of `accelerator_config`, which loaders of the run follow, too."""

    def get(self: Accelerator) -> Any:
        return getattr(self._parts.args.accelerator_config, name)

    def set_(self: Accelerator, value: Any) -> None:
        config: Any = self._parts.args.accelerator_config
        config.assign(name, value)
        if self._real is not None:
            setattr(self._real.dataloader_config, name, value)

    return property(get, set_, doc=f"`{name}` of `accelerator_config`; loaders made after an assignment follow it.")


for _name in sharing.SHARING:
    setattr(Accelerator, _name, _sharing_setting(_name))


def adopted(parts: AcceleratorParts, assigned: Any) -> Any:
    """Return what `trainer.accelerator` is after an assignment.

    An `accelerate.Accelerator` becomes the real one of an accelerator of the run; the methods that its class overrides
    are called instead of the run's, and loaders follow its settings. Any other object is used as it is.
    Raises ConfigurationError if the Accelerator has other processes, or another device or precision, than the run.
    """
    if not sharing.is_accelerator(assigned):
        return assigned
    sharing.refuse_other_accelerator(assigned, parts.args, parts.adapters)
    config: Any = parts.args.accelerator_config
    for name in sharing.SHARING:
        config.assign(name, getattr(assigned.dataloader_config, name))
    made = Accelerator(parts, assigned)
    vars(made).update({name: getattr(assigned, name) for name in sharing.overridden(assigned) if name in METHODS})
    return made


METHODS = frozenset(
    name
    for name in dir(Accelerator)
    if not name.startswith("_") and isinstance(getattr(Accelerator, name), FunctionType)
) - {"follow", "assigned"}
"""The methods of accelerate's Accelerator that the run implements."""
