"""The weights of a module, under the names of the module that the user passed in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.tensors import part_of, tensor_of
from hexloop.ports.state import Part


class ModelState:
    """Answers the Exportable port for a module's parameters and buffers.

    A tensor that goes by several names (tied weights) leaves once, under the name that the model does not derive from
    another (transformers' `_tied_weights_keys`), else under the first; loading it fills all of them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def export(self) -> Iterator[Part]:
        """Every tensor of the state dict, each once."""
        for name, tensor in self.named_tensors().items():
            yield part_of(name, tensor)

    def named_tensors(self) -> dict[str, Tensor]:
        """The tensors that leave, by name."""
        state = self._state()
        return {name: state[name] for name, owner in _owners(self._model, state).items() if name == owner}

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors.

        Raises ValueError, naming them, where one is missing, unknown or of another shape; nothing is changed then.
        """
        found = {part.name: part for part in parts}
        own = self._state()
        owners = _owners(self._model, own)
        held = {owners.get(name, name) for name in found}
        problems = [f"{name} is missing" for name in sorted(set(owners.values()) - held)]
        problems += [f"{name} is unknown to the model" for name in sorted(found.keys() - own.keys())]
        problems += [
            f"{name} is of shape {found[name].shape} and should be {tuple(own[name].shape)}"
            for name in sorted(found.keys() & own.keys())
            if found[name].shape != tuple(own[name].shape)
        ]
        if problems:
            raise ValueError(f"The saved weights do not fit the model: {'; '.join(problems)}.")
        with torch.no_grad():
            for name, part in found.items():
                own[name].copy_(tensor_of(part))

    def _state(self) -> dict[str, Tensor]:
        state = self._model.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _owners(model: nn.Module, state: dict[str, Tensor]) -> dict[str, str]:
    """For each name of a tensor the one name under which the tensor leaves."""
    derived = set(getattr(model, "_tied_weights_keys", None) or ())
    names_of: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names_of.setdefault(id(tensor), []).append(name)
    owners: dict[str, str] = {}
    for names in names_of.values():
        owner = next((name for name in names if name not in derived), names[0])
        owners |= dict.fromkeys(names, owner)
    return owners
