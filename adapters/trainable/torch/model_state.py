"""The weights of a module, under the names of the user's model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout, WholeLayout, assigned_parts, entry_of, shape_of
from hexloop.adapters.trainable.torch.serialization import (
    DTYPES,
    StateDecoder,
    StateEncoder,
    read_slice,
    read_tensor,
    tensor_part,
)
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import JSON, Part

EXTRA = "_extra_state"
"""The last component of the name of a module's `get_extra_state`."""

MOST_NAMED = 20
"""How many tensors a message lists for each kind of difference."""


class ModelState:
    """Exportable adapter for a module's parameters and buffers, and the extra state of its submodules.

    A tied tensor is exported once, under the name that is not in transformers' tied keys, else under its first name;
    loading it fills all names.

    layout: how the tensors are distributed. If they are sharded, each is exported whole by one rank, and as an empty
    part by the others. writers: how many ranks export tensors; None: all.
    """

    def __init__(self, model: nn.Module, layout: TorchLayout = WHOLE, writers: int | None = None) -> None:
        self._model = model
        self._layout = layout
        self._writers = writers

    def export(self) -> Iterator[Part]:
        """Yield every tensor of the state dict once, and each extra state as a JSON document."""
        tensors = self.named_tensors()
        if isinstance(self._layout, WholeLayout):
            yield from (tensor_part(name, tensor) for name, tensor in tensors.items())
        else:
            entries = [entry_of(name, tensor, tensor, self._layout) for name, tensor in tensors.items()]
            yield from assigned_parts(entries, self._layout, self._writers)
        yield from self.extra_parts()

    def extra_parts(self) -> Iterator[Part]:
        """Yield each extra state as a JSON document, after its tensors."""
        for name, value in self._extra().items():
            flattening = StateEncoder(type(self._model).__qualname__)
            document = flattening.flatten(value, f"{name}.value")
            for inner, tensor in flattening.tensors.items():
                yield tensor_part(inner, tensor)
            yield json_part(name, document)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to export, by name."""
        state = self._state()
        return {name: state[name] for name, owner in _owners(self._model, state).items() if name == owner}

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors.

        Raises ValueError, changing nothing, if tensors are missing, unknown or have other shapes.
        """
        found = {part.name: part for part in parts}
        problems = self.differences(list(found.values()))
        if problems:
            raise ValueError(f"The saved weights do not fit the model: {'; '.join(problems)}.")
        own, restoring = self._state(), StateDecoder(found)
        extra = {name: restoring.restore(json_value(found[name])) for name in self._extra()}
        with torch.no_grad():
            self._copy({name: own[name] for name in found if name in own}, found)
        for name, value in extra.items():
            self._model.get_submodule(name.rpartition(".")[0]).set_extra_state(value)

    def _copy(self, own: Mapping[str, Tensor], found: Mapping[str, Part]) -> None:
        """Fill each tensor from its part; of a sharded tensor, only this rank's elements are read."""
        for name, tensor in own.items():
            spread = self._layout.spread(tensor, tensor)
            if spread is None:
                tensor.copy_(read_tensor(found[name]))
            else:
                self._layout.local(tensor).copy_(read_slice(found[name], *spread.own))

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        """Return how saved tensors differ from the model's: missing, unknown, other shapes and, if asked, types."""
        found = {part.name: part for part in parts}
        own, extra = self._state(), self._extra()
        shapes = {name: shape_of(tensor, tensor, self._layout) for name, tensor in own.items()}
        owners = _owners(self._model, own)
        held = {owners.get(name, name) for name in found}
        belonging = {name for name in found if any(name == each or name.startswith(f"{each}.") for each in extra)}
        both = sorted(name for name in found.keys() & own.keys() if found[name].dtype != JSON)
        listed = {
            "missing": [f"{name} is missing" for name in sorted({*owners.values(), *extra} - held)],
            "unknown": [
                f"{name} is unknown to the model" for name in sorted(found.keys() - own.keys() - belonging)
            ],
            "shapes": [
                f"{name} is of shape {found[name].shape} there and {shapes[name]} here"
                for name in both
                if found[name].shape != shapes[name]
            ],
            "types": [
                f"{name} is of type {found[name].dtype} there and {DTYPES.get(own[name].dtype)} here"
                for name in both
                if types and found[name].dtype != DTYPES.get(own[name].dtype)
            ],
        }  # fmt: skip
        return [problem for problems in listed.values() for problem in _shortened(problems)]

    def _state(self) -> dict[str, Tensor]:
        state = self._layout.state(self._model)
        return {name: value for name, value in state.items() if isinstance(value, Tensor) and not _is_extra(name)}

    def _extra(self) -> dict[str, object]:
        return {name: value for name, value in self._layout.state(self._model).items() if _is_extra(name)}


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == EXTRA


def _shortened(problems: list[str]) -> list[str]:
    left = len(problems) - MOST_NAMED
    return problems if left <= 0 else [*problems[:MOST_NAMED], f"and so are {left} more"]


def _owners(model: nn.Module, state: dict[str, Tensor]) -> dict[str, str]:
    """For each name of a tensor the one name under which the tensor leaves."""
    names_of: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names_of.setdefault(id(tensor), []).append(name)
    owners: dict[str, str] = {}
    for names in names_of.values():
        owner = (
            names[0] if len(names) == 1 else next((name for name in names if not _is_derived(model, name)), names[0])
        )
        owners |= dict.fromkeys(names, owner)
    return owners


def _is_derived(model: nn.Module, name: str) -> bool:
    """Whether the model makes the tensor of this name from another's, by a name or a pattern of names."""
    derived = getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ()
    return any(name == key or re.fullmatch(key, name) for key in derived)
