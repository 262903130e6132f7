"""The tensors of an optimizer whose parameters are spread over processes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor

from hexloop.adapters.trainable.torch.layouts import Entry, TorchLayout, entry_of, of_all
from hexloop.adapters.trainable.torch.serialization import DTYPES, TYPES, tensor_names
from hexloop.ports.parallelism import Spread


def entries_of(tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], layout: TorchLayout) -> list[Entry]:
    """What leaves of tensors by name, of which some are the state of parameters."""
    return [
        entry_of(name, tensor, parameters[name], layout)
        if name in parameters
        else Entry(name, tensor, tuple(tensor.shape), tensor.dtype)
        for name, tensor in tensors.items()
    ]


def agreed(
    state: Mapping[str, Any], entries: list[Entry], parameters: Mapping[str, Tensor], layout: TorchLayout
) -> tuple[dict[str, Any], list[Entry]]:
    """The state of all parameters and its tensors, where a process has that of parameters alone of which it holds some.

    state: from a parameter's name to what is kept of it, as JSON that mentions tensors. Each is told by the first
    process that holds some of its parameter. Collective.
    """
    own, said = {entry.name: entry for entry in entries}, {}
    for name, kept in state.items():
        if _first(parameters[name], layout) == layout.rank:
            told = [own[tensor] for tensor in tensor_names(kept)]
            said[name] = [kept, [[each.name, DTYPES[each.dtype], each.shape, each.spread is None] for each in told]]
    heard = of_all(said)
    merged: dict[str, Any] = {}
    of_parameters = {tensor for kept in state.values() for tensor in tensor_names(kept)}
    found = {name: entry for name, entry in own.items() if name not in of_parameters}
    for name, parameter in parameters.items():
        first = _first(parameter, layout)
        if name not in heard[first]:
            continue
        merged[name], told = heard[first][name]
        for tensor, dtype, shape, whole in told:
            held, size = own.get(tensor), prod(shape)
            runs = tuple((0, size if rank == first else 0) for rank in range(layout.world_size))
            spread = Spread(tuple(shape), runs, runs[layout.rank]) if whole else layout.spread(parameter, parameter)
            found[tensor] = Entry(tensor, None if held is None else held.tensor, tuple(shape), TYPES[dtype], spread)
    return merged, list(found.values())


def _first(parameter: Tensor, layout: TorchLayout) -> int:
    """The first process that holds some of a parameter."""
    spread = layout.spread(parameter, parameter)
    return 0 if spread is None else next((rank for rank, (_, length) in enumerate(spread.runs) if length), 0)
