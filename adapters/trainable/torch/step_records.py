"""Digests of everything that a training step computes, so that two runs can be compared step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import xxhash
from attrs import define, field
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hexloop.domain.why import ModuleCall

MOST_CALLS = 20_000
"""Calls of modules that are recorded of a micro-batch."""

LONGEST_DESCRIPTION = 200
"""Characters of the description of a module."""


def digest(tensor: Tensor) -> str:
    """Return the type, the shape and 16 hexadecimal digits (xxh3-64) of the bytes of a tensor."""
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    try:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    except (RuntimeError, TypeError, NotImplementedError):  # of a class of tensors without bytes of their own
        return f"{kind} ?"
    return f"{kind} {xxhash.xxh3_64_hexdigest(data)}"


def digests(tensors: Iterable[tuple[str, Tensor | None]]) -> dict[str, str]:
    """Return the digests of tensors by name, without those that are None."""
    return {name: digest(each) for name, each in tensors if each is not None}


def weights_of(model: Any) -> dict[str, str]:
    """Return the digests of the parameters and buffers of a model."""
    return digests([*model.named_parameters(), *model.named_buffers()])


def gradients_of(model: Any) -> dict[str, str]:
    """Return the digests of the gradients of a model, by the names of their parameters."""
    return digests((name, each.grad) for name, each in model.named_parameters())


def optimizer_of(model: Any, optimizer: Any) -> dict[str, str]:
    """Return the digests of the state of an optimizer, as "<parameter>: <value>"."""
    names = {id(each): name for name, each in model.named_parameters()}
    found: dict[str, str] = {}
    for parameter, state in getattr(optimizer, "state", {}).items():
        name = names.get(id(parameter), "a parameter")
        for key, value in state.items() if isinstance(state, Mapping) else ():
            found[f"{name}: {key}"] = digest(value) if isinstance(value, Tensor) else repr(value)[:LONGEST_DESCRIPTION]
    order = {name: number for number, name in enumerate(names.values())}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0].partition(": ")[0], -1)))


def groups_of(optimizer: Any) -> list[dict[str, str]]:
    """Return the options of each parameter group of an optimizer, and how many parameters it has, as text."""
    return [
        {
            **{name: _plain(value) for name, value in group.items() if name not in ("params", "initial_lr")},
            "parameters": str(len(group["params"])),
            "class": type(optimizer).__name__,
        }
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> str:
    return repr(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value)[:LONGEST_DESCRIPTION]


def number_of(loss: Any) -> str:
    """Return a number in hexadecimal; "" for None."""
    return "" if loss is None else float(loss).hex()


@define
class ModuleRecorder:
    """Records the calls of the modules of a model while it is `attached`."""

    calls: list[ModuleCall] = field(factory=list)

    @contextmanager
    def attached(self, model: Any) -> Iterator[None]:
        """Record the calls within the block."""
        with ExitStack() as undo:
            for name, module in model.named_modules():
                handle = module.register_forward_hook(self._hook(name), with_kwargs=True, always_call=False)
                undo.callback(handle.remove)
            yield

    def taken(self) -> list[ModuleCall]:
        """Return the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def _hook(self, name: str) -> Callable[..., None]:
        def record(module: Any, inputs: Any, keywords: Any, outputs: Any) -> None:
            if len(self.calls) < MOST_CALLS:
                self.calls.append(ModuleCall(name, _description(module), _all(inputs, keywords), _all(outputs)))

        return record


def _description(module: Any) -> str:
    try:
        extra = module.extra_repr()
    except Exception:  # of a class of the user's
        extra = ""
    return f"{type(module).__name__}({extra})"[:LONGEST_DESCRIPTION]


def _all(*values: Any) -> str:
    """Return the digest of several tensors as one; that of a single tensor starts with its type and shape."""
    found = [
        digest(each) for each in tree_leaves([_without_class(each) for each in values]) if isinstance(each, Tensor)
    ]
    if len(found) == 1:
        return found[0]
    kinds = ", ".join(each.rpartition(" ")[0] for each in found[:4])
    return f"{kinds} {xxhash.xxh3_64_hexdigest(' '.join(found).encode())}"


def _without_class(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
