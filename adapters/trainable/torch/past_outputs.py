"""A model's own memory of earlier batches, handed from one forward pass to the next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from hexloop.domain.errors import ConfigurationError

KEYWORD = "mems"
"""The keyword under which models take their memory."""


class PastOutputs:
    """Hands the output at a place to the next forward pass, under the keyword `mems` and without its graph.

    index: the place among the outputs, where the loss, if there is one, is the first.
    training: whether the passes of training are meant, or those of evaluation; each has a memory of its own.
    """

    def __init__(self, index: int, training: bool) -> None:
        self.index = index
        self.training = training
        self.past: Any = None

    def forget(self) -> None:
        """Hand nothing to the next pass."""
        self.past = None

    def attach(self, model: nn.Module) -> Callable[[], None]:
        """Begin with the next pass of `model`; gives what ends it.

        Raises ConfigurationError where the model takes no memory, and in a pass that gives fewer outputs.
        """
        taken = inspect.signature(model.forward).parameters.values()
        if not any(each.name == KEYWORD or each.kind is each.VAR_KEYWORD for each in taken):
            raise ConfigurationError(
                [
                    f"You chose past_index={self.index}, but {type(model).__name__} takes no memory; give its forward "
                    f"a parameter {KEYWORD}, or leave the argument out."
                ]
            )
        before = model.register_forward_pre_hook(self._hand_on, with_kwargs=True)
        after = model.register_forward_hook(self._keep)

        def remove() -> None:
            before.remove()
            after.remove()

        return remove

    def _hand_on(self, model: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if model.training is self.training and self.past is not None:
            named = {**named, KEYWORD: self.past}
        return inputs, named

    def _keep(self, model: nn.Module, _inputs: Any, outputs: Any) -> None:
        if model.training is not self.training:
            return
        values = tuple(outputs.values()) if isinstance(outputs, Mapping) else outputs
        if not isinstance(values, tuple | list) or self.index >= len(values):
            count = len(values) if isinstance(values, tuple | list) else 1
            raise ConfigurationError(
                [
                    f"You chose past_index={self.index}, but {type(model).__name__} gives {count} outputs; choose the "
                    "place of its memory among them, counted from 0, or leave the argument out."
                ]
            )
        self.past = _detached(values[self.index])


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return type(value)(map(_detached, value)) if isinstance(value, tuple | list) else value
