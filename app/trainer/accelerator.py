"""`trainer.accelerator`: the part of accelerate's interface that overridden hooks use, over the Trainer's adapters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from attrs import frozen

from hexloop.app.environment import launched
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.evaluation import tensor_gatherer

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@frozen
class Accelerator:
    """The part of accelerate's Accelerator that hooks of the Trainer need; accelerate itself is not used.

    sync_gradients: whether the gradients of the present micro-batch are those of an optimizer step.
    """

    adapters: Adapters
    sync_gradients: bool = True

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return torch.device(self.adapters.device.name)

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.adapters.collectives.rank

    @property
    def num_processes(self) -> int:
        """The number of processes of the run."""
        return self.adapters.collectives.world_size

    @property
    def local_process_index(self) -> int:
        """The rank of this process among those of its machine."""
        return launched().local_rank

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process is the first of its machine."""
        return self.local_process_index == 0

    @property
    def mixed_precision(self) -> str:
        """The mixed precision: fp16, bf16 or no."""
        return self.adapters.precision.name if self.adapters.precision.name in HALVES else "no"

    @property
    def is_main_process(self) -> bool:
        """Whether this process is the first of the run."""
        return self.process_index == 0

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of `loss`, scaled as the precision requires, to those of the window."""
        self.adapters.parallelism.backward(self.adapters.precision.scale(loss))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which the model computes in the run's precision; close it before the hook returns."""
        dtype = HALVES.get(self.adapters.precision.name)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def unwrap_model(self, model: Any, **kwargs: Any) -> Any:
        """Return the model as the user passed it."""
        return self.adapters.parallelism.unwrap(getattr(model, "_orig_mod", model))

    def prepare(self, *objects: Any) -> Any:
        """Return the objects unchanged: the Trainer itself prepares what a run needs."""
        return objects[0] if len(objects) == 1 else objects

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all processes, concatenated; scalars become rows."""
        if self.num_processes == 1:
            return tensor
        return _concatenated([part for part, _ in self._gatherer.parts(tensor, 0)])

    gather_for_metrics = gather

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the "sum" or "mean" of the tensors of all processes, or with "none" this process's, times `scale`."""
        if reduction not in ("sum", "mean", "none"):
            raise ValueError(f"reduction={reduction!r} is invalid; choose 'sum', 'mean' or 'none'.")
        if self.num_processes == 1 or reduction == "none":
            return tensor * scale
        total = self._gatherer.total(tensor)
        return total * scale / (self.num_processes if reduction == "mean" else 1)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return the tensor of this process, padded with `pad_index` to the longest of all processes in `dim`."""
        if self.num_processes == 1:
            return tensor
        lengths = self._gatherer.each(torch.tensor(tensor.shape[dim], device=self.device))
        missing = max(int(length) for length in lengths) - tensor.shape[dim]
        shape = (*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :])
        filling = tensor.new_full(shape, pad_index)
        return torch.cat([filling, tensor] if pad_first else [tensor, filling], dim=dim)

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """Return the model unchanged; see `prepare`."""
        return model

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip gradients to `max_norm` in place; return their norm before. For full precision only."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def print(self, *values: Any, **options: Any) -> None:
        """Print in the first process only."""
        if self.is_main_process:
            print(*values, **options)

    def free_memory(self, *objects: Any) -> tuple[Any, ...]:
        """Release the memory that the device's allocator caches; return None for each object."""
        self.adapters.device.release_memory()
        return (None,) * len(objects)

    def wait_for_everyone(self) -> None:
        """Wait for all processes."""
        self.adapters.collectives.barrier("wait_for_everyone")

    @property
    def _gatherer(self) -> Any:
        return tensor_gatherer(self.adapters.device.name)


def _concatenated(values: list[Any]) -> Any:
    """Concatenate nested tensors."""
    first = values[0]
    if isinstance(first, Mapping):
        return type(first)({name: _concatenated([value[name] for value in values]) for name in first})  # type: ignore[call-arg]
    if isinstance(first, list | tuple):
        return type(first)(_concatenated(list(each)) for each in zip(*values, strict=True))
    return torch.cat(values) if isinstance(first, torch.Tensor) else first
