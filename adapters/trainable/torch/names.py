"""The names of a model's modules and tensors in the model that the user wrote, whatever the user wrapped it in.

`torch.compile`, DataParallel and DistributedDataParallel return a module that holds the original one under a name of
their own, which becomes a part of the names of all tensors below. The same happens to compiled submodules. Saved under
such names, the weights would not be found by `from_pretrained`, or by the same model without the wrapper.
Parametrizations (`torch.nn.utils.parametrize`) are no wrappers: what they train are tensors of the model, whose names
("parametrizations.weight.original") are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")

Location: TypeAlias = tuple[nn.Module, str]
"""A module, and the name of an attribute of it."""

COMPILED = "_orig_mod"
"""The name under which the module that `torch.compile` returns holds the original one."""

PARALLEL = "module"
"""The name under which DataParallel and DistributedDataParallel hold the original one."""


def wrapped_as(module: nn.Module) -> str | None:
    """Return the name under which a wrapper holds the original module; None if it is not a wrapper."""
    if COMPILED in module._modules:
        return COMPILED
    return PARALLEL if isinstance(module, nn.DataParallel | DistributedDataParallel) else None


def unwrapped(model: Any) -> Any:
    """Return the module inside all wrappers of a model; what is not a module, as it is."""
    while isinstance(model, nn.Module) and (name := wrapped_as(model)) is not None:
        model = model._modules[name]
    return model


def wrapper_in(model: Any) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that the user has wrapped the model in, before or after compiling it."""
    while isinstance(model, nn.Module) and not isinstance(model, DistributedDataParallel):
        name = wrapped_as(model)
        if name is None:
            return None
        model = model._modules[name]
    return model if isinstance(model, DistributedDataParallel) else None


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model or a module in it was compiled, by `torch.compile` or in place."""
    return any(COMPILED in each._modules or each._compiled_call_impl is not None for each in model.modules())


def by_own_names(model: nn.Module, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values that are named like the tensors of `model`, under the names without wrappers."""
    if not any(COMPILED in name or PARALLEL in name for name in values):
        return dict(values)
    wrappers = {
        f"{path}.{name}." if path else f"{name}.": f"{path}." if path else ""
        for path, module in model.named_modules(remove_duplicate=False)
        if (name := wrapped_as(module)) is not None
    }
    return {_without(name, wrappers): value for name, value in values.items()} if wrappers else dict(values)


def _without(name: str, wrappers: Mapping[str, str]) -> str:
    """Return a name without its wrappers, the innermost first, so that the paths of the outer ones still match."""
    for prefix in sorted((each for each in wrappers if name.startswith(each)), key=len, reverse=True):
        name = wrappers[prefix] + name[len(prefix) :]
    return name


def tensor_locations(model: nn.Module) -> tuple[dict[str, Location], list[str]]:
    """Return, for each name in the state dict, the module that holds the tensor and its attribute.

    Also returns the names of the entries that are no parameters or buffers, such as extra state.
    """
    found: dict[str, Location] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for leaf in (*module._parameters, *module._buffers):
            found[f"{prefix}.{leaf}" if prefix else leaf] = module, leaf
    state = model.state_dict()
    known = {name: found[name] for name in state if name in found}
    return by_own_names(model, known), [name for name in state if name not in found]


def submodule(model: nn.Module, path: str) -> nn.Module:
    """Return the module at a path without wrappers."""
    module: nn.Module = unwrapped(model)
    for name in filter(None, path.split(".")):
        module = unwrapped(module.get_submodule(name))
    return module


def fitting_names(saved: Iterable[str], own: Collection[str]) -> dict[str, str]:
    """Return, for each saved name, the name among `own` that it stands for; the same if there is none.

    Files of other programs and of earlier versions have the names of the wrapped model.
    """
    return {name: name if name in own else _fitting(name, own) for name in saved}


def _fitting(name: str, own: Collection[str]) -> str:
    kept = name.replace(f"{COMPILED}.", "")
    while kept not in own and kept.startswith(f"{PARALLEL}."):
        kept = kept.removeprefix(f"{PARALLEL}.")
    return kept if kept in own else name
