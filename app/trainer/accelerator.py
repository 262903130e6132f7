"""What overridden hooks expect under `trainer.accelerator`, answered by the Trainer's own adapters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from attrs import frozen

from hexloop.app.environment import launched
from hexloop.app.wiring.adapters import Adapters

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@frozen
class Accelerator:
    """The part of accelerate's Accelerator that a hook of the Trainer needs; no real one is ever made.

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
        """This process among all of the run."""
        return self.adapters.collectives.rank

    @property
    def num_processes(self) -> int:
        """The processes of the run."""
        return self.adapters.collectives.world_size

    @property
    def local_process_index(self) -> int:
        """This process among those of its machine."""
        return launched().local_rank

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process is the first of its machine."""
        return self.local_process_index == 0

    @property
    def mixed_precision(self) -> str:
        """fp16, bf16, or no."""
        return self.adapters.precision.name if self.adapters.precision.name in HALVES else "no"

    @property
    def is_main_process(self) -> bool:
        """Whether this process is the first of the run."""
        return self.process_index == 0

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of `loss`, scaled as the number format needs it, to those of the window."""
        self.adapters.parallelism.backward(self.adapters.precision.scale(loss))

    def autocast(self) -> AbstractContextManager[Any]:
        """A context in which the model computes in the run's number format; close it before the hook returns."""
        dtype = HALVES.get(self.adapters.precision.name)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def unwrap_model(self, model: Any, **kwargs: Any) -> Any:
        """The model as the user passed it in."""
        return self.adapters.parallelism.unwrap(getattr(model, "_orig_mod", model))

    def prepare(self, *objects: Any) -> Any:
        """The objects as they are: what a run needs prepared, the Trainer prepares."""
        return objects[0] if len(objects) == 1 else objects

    def gather(self, tensor: Any) -> Any:
        """The tensors of every process, one after the other; numbers become rows."""
        if self.num_processes == 1:
            return tensor
        return _joined([part for part, _ in self._ranks.parts(tensor, 0)])

    gather_for_metrics = gather

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The tensors of all processes made one: their "sum" or "mean", times `scale`; "none" leaves them."""
        if reduction not in ("sum", "mean", "none"):
            raise ValueError(f"You chose reduction={reduction!r}, but there are 'sum', 'mean' and 'none'.")
        if self.num_processes == 1 or reduction == "none":
            return tensor * scale
        total = self._ranks.total(tensor)
        return total * scale / (self.num_processes if reduction == "mean" else 1)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """The tensor of this process, as long in `dim` as the longest, filled up with `pad_index` at one end."""
        if self.num_processes == 1:
            return tensor
        lengths = self._ranks.each(torch.tensor(tensor.shape[dim], device=self.device))
        missing = max(int(length) for length in lengths) - tensor.shape[dim]
        shape = (*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :])
        filling = tensor.new_full(shape, pad_index)
        return torch.cat([filling, tensor] if pad_first else [tensor, filling], dim=dim)

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """The model as it is; see `prepare`."""
        return model

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Scale gradients down to `max_norm` in place; gives their norm before. For full precision only."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def print(self, *values: Any, **options: Any) -> None:
        """Print, in the first process alone."""
        if self.is_main_process:
            print(*values, **options)

    def free_memory(self, *objects: Any) -> tuple[Any, ...]:
        """Give back what the device's allocator keeps for later; the objects are let go of."""
        self.adapters.device.release_memory()
        return (None,) * len(objects)

    def wait_for_everyone(self) -> None:
        """Wait until every process is here."""
        self.adapters.collectives.barrier("wait_for_everyone")

    @property
    def _ranks(self) -> Any:
        from hexloop.adapters.collectives.torch.tensors import TensorRanks

        return TensorRanks(self.device)


def _joined(values: list[Any]) -> Any:
    """Tensors one after the other, whatever they are nested in."""
    first = values[0]
    if isinstance(first, Mapping):
        return type(first)({name: _joined([value[name] for value in values]) for name in first})  # type: ignore[call-arg]
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(each)) for each in zip(*values, strict=True))
    return torch.cat(values) if isinstance(first, torch.Tensor) else first
