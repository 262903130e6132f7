"""The weights of a module, under the names in the module that the user passed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout, assigned_parts, entry_of, shape_of
from hexloop.adapters.trainable.torch.names import fitting_names, submodule, unwrapped
from hexloop.adapters.trainable.torch.serialization import (
    DTYPES,
    StateDecoder,
    StateEncoder,
    read_box,
    read_tensor,
    tensor_part,
)
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.wording import listed
from hexloop.ports.state import JSON, Part

EXTRA = "_extra_state"
"""The last component of the name of a module's extra state (`get_extra_state`) in a state dict."""

MOST_NAMED = 20
"""The most tensors of one kind that a message lists."""


class ModelState:
    """Implements the Exportable port for a module's parameters, buffers and extra state.

    A tensor with several names (tied weights) is exported once: under the name that the model does not derive from
    another (transformers' tied keys), or else under the first. Loading it fills all of them.
    Names are those in the model without wrappers; parts with the names of a wrapped model are loaded as well.
    layout: how the tensors are distributed over the ranks. One rank exports a distributed tensor as a whole, the others
    export an empty part of it. writers: the number of ranks that export tensors; all ranks if None.
    kept: returns whether a tensor or extra state, by its name, is exported and loaded; all are if None. It is called
    with the name under which a tied tensor is exported.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: TorchLayout = WHOLE,
        writers: int | None = None,
        kept: Callable[[str], bool] | None = None,
    ) -> None:
        self._model = model
        self._layout = layout
        self._writers = writers
        self._kept = kept

    def export(self) -> Iterator[Part]:
        """Export every tensor of the state dict once, and each extra state as a JSON document and its tensors."""
        state = self._layout.state(self._model)
        tensors = self._owned(self._tensors_of(state))
        if self._layout.whole:
            yield from (tensor_part(name, tensor) for name, tensor in tensors.items())
        else:
            entries = [entry_of(name, tensor, tensor, self._layout) for name, tensor in tensors.items()]
            yield from assigned_parts(entries, self._layout, self._writers)
        for name, value in self._extra_of(state).items():
            encoder = StateEncoder(type(unwrapped(self._model)).__qualname__)
            document = encoder.encode(value, f"{name}.value")
            for inner, tensor in encoder.tensors.items():
                yield tensor_part(inner, tensor)
            yield json_part(name, document)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to export, by name."""
        return self._owned(self._state())

    def _owned(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: state[name] for name, owner in owners(self._model, state).items() if name == owner}

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors.

        Raises ValueError, changing nothing, if a tensor is missing, unknown or of a different shape.
        """
        saved = {part.name: part for part in parts}
        found = self.named(saved)
        self._refuse(self.differences(list(found.values())))
        self._fill(found, saved)

    def load_present(self, parts: Iterable[Part]) -> tuple[list[str], list[str]]:
        """Copy the parts that the module has; return the names that are missing, and those that are unknown.

        Raises ValueError, changing nothing, if a shape differs.
        """
        saved = {part.name: part for part in parts}
        found = self.named(saved)
        self._refuse(self._other_shapes(found))
        self._fill(found, saved)
        return self._unmatched(found.keys())

    def named(self, saved: Mapping[str, Part]) -> dict[str, Part]:
        """Return the parts by the names in this model, the tensors of an extra state with it."""
        extra = self._extra()
        names = fitting_names(saved, {*self._state(), *extra})
        for name, own in [(name, own) for name, own in names.items() if name != own and own in extra]:
            inner = [each for each in saved if each.startswith(f"{name}.")]
            names |= {each: own + each.removeprefix(name) for each in inner}
        return {
            own: part if own == part.name else evolve(part, name=own)
            for own, part in ((names[name], part) for name, part in saved.items())
        }

    @staticmethod
    def _refuse(problems: Sequence[str]) -> None:
        if problems:
            raise ValueError(f"The saved weights do not fit the model: {listed(problems)}.")

    def _fill(self, found: Mapping[str, Part], saved: Mapping[str, Part]) -> None:
        """Copy the parts that the module has, and set the extra state that is among them.

        saved: the parts under their names in the file, by which an extra state refers to its tensors.
        """
        own, decoder = self._state(), StateDecoder(saved)
        extra = {name: decoder.decode(json_value(found[name])) for name in self._extra() if name in found}
        with torch.no_grad():
            self._copy({name: own[name] for name in found if name in own}, found)
        for name, value in extra.items():
            submodule(self._model, name.rpartition(".")[0]).set_extra_state(value)

    def _copy(self, own: Mapping[str, Tensor], found: Mapping[str, Part]) -> None:
        """Fill each tensor from the part of its name; of a distributed tensor, only this rank's elements are read."""
        for name, tensor in own.items():
            spread = self._layout.spread(tensor, tensor)
            if spread is None:
                tensor.copy_(read_tensor(found[name]))
            else:
                local = self._layout.local(tensor)
                local.copy_(read_box(found[name], spread).view(local.shape))

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        """Return how saved tensors differ from the model's: missing, unknown, other shapes and optionally types."""
        found = self.named({part.name: part for part in parts})
        missing, unknown = self._unmatched(found.keys())
        listed = [
            [f"{name} is not in the checkpoint" for name in missing],
            [f"{name} is not in the model" for name in unknown],
            self._other_shapes(found),
        ]
        if types:
            listed.append(
                [
                    f"{name} has type {part.dtype} in the checkpoint and {DTYPES.get(own.dtype)} in the model"
                    for name, part, own in self._in_both(found)
                    if part.dtype != DTYPES.get(own.dtype)
                ]
            )
        return [problem for problems in listed for problem in _shortened(problems)]

    def _unmatched(self, names: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the module's names that are not among `names`, and those of `names` that the module does not have."""
        own, extra = self._state(), self._extra()
        owner_of = owners(self._model, own)
        held = {owner_of.get(name, name) for name in names}
        belonging = {name for name in names if any(name == each or name.startswith(f"{each}.") for each in extra)}
        return sorted({*owner_of.values(), *extra} - held), sorted({*names} - own.keys() - belonging)

    def _other_shapes(self, found: Mapping[str, Part]) -> list[str]:
        both = [(name, part.shape, shape_of(own, own, self._layout)) for name, part, own in self._in_both(found)]
        return [
            f"{name} has shape {saved} in the checkpoint and {shape} in the model"
            for name, saved, shape in both
            if saved != shape
        ]

    def _in_both(self, found: Mapping[str, Part]) -> list[tuple[str, Part, Tensor]]:
        """Return the tensors that the module and the parts have, by name."""
        own = self._state()
        return [(name, found[name], own[name]) for name in sorted(own) if name in found and found[name].dtype != JSON]

    def _state(self) -> dict[str, Tensor]:
        return self._tensors_of(self._layout.state(self._model))

    def _tensors_of(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        found = {name: value for name, value in state.items() if isinstance(value, Tensor) and not is_extra(name)}
        if self._kept is None:
            return found
        owner_of = owners(self._model, found)
        return {name: value for name, value in found.items() if self._kept(owner_of[name])}

    def _extra(self) -> dict[str, object]:
        return self._extra_of(self._layout.state(self._model))

    def _extra_of(self, state: Mapping[str, Any]) -> dict[str, object]:
        kept = self._kept
        return {name: value for name, value in state.items() if is_extra(name) and (kept is None or kept(name))}


def is_extra(name: str) -> bool:
    """Return whether a name in a state dict is that of a module's extra state."""
    return name.rpartition(".")[2] == EXTRA


def _shortened(problems: list[str]) -> list[str]:
    left = len(problems) - MOST_NAMED
    return problems if left <= 0 else [*problems[:MOST_NAMED], f"and {left} more"]


def owners(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return, for each name of a tensor, the name under which the tensor is exported."""
    names_of: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names_of.setdefault(id(tensor), []).append(name)
    found: dict[str, str] = {}
    for names in names_of.values():
        owner = names[0] if len(names) == 1 else next((name for name in names if not is_derived(model, name)), names[0])
        found |= dict.fromkeys(names, owner)
    return found


def is_derived(model: nn.Module, name: str) -> bool:
    """Return whether the model derives the tensor of this name from another, according to its tied keys or patterns."""
    model = unwrapped(model)
    derived = getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ()
    return any(name == key or re.fullmatch(key, name) for key in derived)
