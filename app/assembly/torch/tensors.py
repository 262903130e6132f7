"""Nested tensors of all processes: gathered, reduced, padded to one size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import Factory, frozen
from torch import Tensor

from hexloop.adapters.batches.torch.structure import map_entries
from hexloop.app.assembly.adapters import Adapters
from hexloop.ports.mesh import DATA


def tensor_gatherer(device: str, announces: bool = True, group: Any = None) -> Any:
    """Return what gathers and sums tensors of the processes of a group, None for all.

    announces: it may report failures to the others.
    """
    from hexloop.adapters.collectives.torch.tensors import TensorRanks

    return TensorRanks(device, announces, group)


def exchange_device(adapters: Adapters) -> str:
    """Return where torch.distributed exchanges tensors: in host memory if the device records operations."""
    return "cpu" if adapters.device.capabilities.records else adapters.device.name


def data_group(adapters: Adapters) -> Any:
    """Return torch's group of the processes that read different samples; None for all. The first call is collective."""
    mesh = adapters.mesh
    if mesh.data.size in (1, mesh.size):
        return None
    from hexloop.adapters.collectives.torch.tensors import device_group

    return device_group(mesh.ranks(*DATA))


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(value, Tensor)


def array_later(value: object, most: int | None) -> Callable[[], Any] | None:
    """Return what copies a tensor to the host as it is now; see `Framework.array_later`."""
    if not isinstance(value, Tensor):
        return None
    kept = value.detach()
    if most is not None and kept.numel() > most:
        kept = kept.reshape(-1)[:: -(-kept.numel() // most)]
    kept = kept.clone()
    copied = _event_after(kept)

    def copy() -> Any:
        if copied is not None:
            copied.synchronize()
        host = kept.cpu()
        return (host.float() if host.is_floating_point() else host).numpy()

    if copied is None and kept.device.type != "cpu":
        array = copy()  # the device has no events, so only this thread can wait for it
        return lambda: array
    return copy


def _event_after(tensor: Tensor) -> Any:
    """Return an event after what was started on the device of a tensor; None if the device has no events."""
    if tensor.device.type == "cpu":
        return None
    try:
        event = torch.Event(tensor.device)
        event.record()
    except (RuntimeError, NotImplementedError):
        return None
    return event


def clip_gradients(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """Clip the gradients of parameters to `max_norm` in place; return their norm before, a scalar on the device."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def clip_gradient_values(parameters: Any, clip_value: float) -> None:
    """Clip the values of gradients in place."""
    torch.nn.utils.clip_grad_value_(parameters, clip_value)


def numbers_of(handles: Sequence[Any]) -> list[float]:
    """Return the values of loss handles, with one wait for the device if they are tensors."""
    if handles and all(isinstance(handle, Tensor) for handle in handles):
        return [float(value) for value in torch.stack([handle.detach().reshape(()) for handle in handles]).tolist()]
    return [float(handle) for handle in handles]


def kept_on_host(model: Any) -> Callable[[Any], None]:
    """Copy weights and buffers to host memory; return what writes them back into a model, and clears its gradients."""
    kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in _tensors(model).items()}

    def restore(model: Any) -> None:
        with torch.no_grad():
            for name, tensor in _tensors(model).items():
                tensor.copy_(kept[name])
        model.zero_grad(set_to_none=True)

    return restore


def _tensors(model: Any) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def nested_arrays(values: Any) -> Any:
    """Return nested tensors as numpy arrays on the host; those in bfloat16, which numpy lacks, in float32."""
    if isinstance(values, Tensor):
        detached = values.detach().cpu()
        return (detached.float() if detached.dtype == torch.bfloat16 else detached).numpy()
    return map_entries(nested_arrays, values)


@frozen
class TensorsOfProcesses:
    """The tensors that each process of a run has. All processes call the same method.

    Methods raise TypeError for values other than tensors.

    device: of this process. size: the number of processes. exchange: where tensors are exchanged, by default there.
    """

    device: str
    size: int
    exchange: str = Factory(lambda self: self.device, takes_self=True)

    def gather(self, values: Any) -> Any:
        """Return the tensors of all processes, concatenated in order of rank; scalars become rows."""
        if self.size == 1:
            return values
        if not holds_only_tensors(values):
            raise TypeError("accelerator.gather takes tensors only; use gather_for_metrics for other values.")
        return self._back(_concatenated([part for part, _, _ in tensor_gatherer(self.exchange).parts(values, 0)]))

    def reduce(self, values: Any, reduction: str, scale: float = 1.0) -> Any:
        """Return the "sum", "mean" or "max" of the tensors of all processes, or with "none" a copy of this process's.

        scale: multiplies the sum. Raises ValueError for another reduction.
        """
        if reduction not in ("sum", "mean", "max", "none"):
            raise ValueError(f"reduction={reduction!r} is invalid; choose 'sum', 'mean', 'max' or 'none'.")

        def reduced(tensor: Tensor) -> Tensor:
            if self.size == 1 or reduction == "none":
                return tensor.clone()
            ranks, own = tensor_gatherer(self.exchange), tensor.to(self.exchange)
            if reduction == "max":
                largest: Tensor = self._back(torch.stack(ranks.each(own)).amax(dim=0))
                return largest
            total: Tensor = self._back(ranks.total(own) if scale == 1.0 else ranks.total(own) * scale)
            return total / self.size if reduction == "mean" else total

        return _for_each(reduced, values)

    def pad(self, values: Any, dim: int, pad_index: int, pad_first: bool) -> Any:
        """Return the tensors of this process, padded with `pad_index` to the longest of all processes in `dim`.

        Tensors without that dimension are returned unchanged.
        """

        def padded(tensor: Tensor) -> Tensor:
            if self.size == 1 or not -tensor.ndim <= dim < tensor.ndim:
                return tensor
            at = dim % tensor.ndim
            lengths = tensor_gatherer(self.exchange).each(torch.tensor(tensor.shape[at], device=self.exchange))
            missing = max(int(length) for length in lengths) - tensor.shape[at]
            filling = tensor.new_full((*tensor.shape[:at], missing, *tensor.shape[at + 1 :]), pad_index)
            return torch.cat([filling, tensor] if pad_first else [tensor, filling], dim=at)

        return _for_each(padded, values)

    def _back(self, values: Any) -> Any:
        """Return exchanged tensors on the device."""
        return values if self.exchange == self.device else _for_each(lambda each: each.to(self.device), values)


def holds_only_tensors(values: Any) -> bool:
    """Return whether a nested value has no other leaves than tensors."""
    if isinstance(values, Mapping):
        return all(map(holds_only_tensors, values.values()))
    if isinstance(values, list | tuple):
        return all(map(holds_only_tensors, values))
    return isinstance(values, Tensor)


def _for_each(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return a nested value with `function` applied to its tensors."""
    if isinstance(values, Mapping):
        return type(values)({name: _for_each(function, each) for name, each in values.items()})  # type: ignore[call-arg]
    if isinstance(values, list | tuple):
        return _as(values, [_for_each(function, each) for each in values])
    if not isinstance(values, Tensor):
        raise TypeError(f"The accelerator expected tensors, but got a value of type {type(values).__name__}.")
    return function(values)


def _concatenated(values: list[Any]) -> Any:
    """Concatenate nested tensors."""
    first = values[0]
    if isinstance(first, Mapping):
        return type(first)({name: _concatenated([value[name] for value in values]) for name in first})  # type: ignore[call-arg]
    if isinstance(first, list | tuple):
        return _as(first, [_concatenated(list(each)) for each in zip(*values, strict=True)])
    return torch.cat(values)


def _as(values: Any, items: list[Any]) -> Any:
    """Return items in a sequence of the type of another one, which may be a named tuple."""
    return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
