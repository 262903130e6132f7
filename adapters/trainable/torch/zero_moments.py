"""The moments of an optimizer whose parameters DeepSpeed has cut up, under the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.nested import TENSOR, Flattening, Restoring, classes_near
from hexloop.adapters.trainable.torch.numbering import NUMBERED, by_name
from hexloop.adapters.trainable.torch.optimizer_state import OPTIONS
from hexloop.adapters.trainable.torch.tensors import part_of, tensor_of
from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions, whole_shape
from hexloop.domain.parts import json_part, json_value
from hexloop.ports.state import Part

MASTERS = "masters"
"""The entry of full-precision weights, where the model's own are of a half format."""

LOSS_SCALE = "loss_scale"
COUNTER = "step"
"""The one tensor of an optimizer's state that is no moment, even of a parameter of one number."""

SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What DeepSpeed's loss scaler keeps between steps."""


class ZeroOptimizerState:
    """Answers the Exportable port for the optimizer of an engine. Both methods are collective.

    Rank 0 alone exports parts, in the form in which one process exports an optimizer over the same model: whole
    moments, each under its parameter's name, one gathered at a time. So a run may go on with another number of
    processes, or without DeepSpeed. All load.
    """

    def __init__(self, model: nn.Module, partitions: ZeroPartitions, scaler: Any = None) -> None:
        self._model = model
        self._partitions = partitions
        self._scaler = scaler
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}

    def export(self) -> Iterator[Part]:
        """Each tensor as "<parameter>.<moment>", and everything else as one JSON document."""
        optimizer = self._partitions.optimizer
        flattening = Flattening(type(optimizer).__qualname__, classes_near(optimizer))
        document: dict[str, Any] = {"groups": [], "state": {}}
        for group, parameters in zip(optimizer.param_groups, self._partitions.groups, strict=True):
            options = {key: value for key, value in group.items() if key != "params"}
            document["groups"].append(
                {key: flattening.flatten(value, f"group.{key}") for key, value in options.items()}
                | {"params": [self._names[id(parameter)] for parameter in parameters]}
            )
        for parameter in self._parameters():
            name = self._names[id(parameter)]
            state: dict[str, Any] = {}
            yield from self._exported(parameter, name, state)
            if state:
                document["state"][name] = {key: value for key, value in state.items() if key != MASTERS}
            if MASTERS in state:
                document.setdefault(MASTERS, {})[name] = state[MASTERS]
        if self._scaler is not None:
            document[LOSS_SCALE] = {key: getattr(self._scaler, key) for key in SCALER if hasattr(self._scaler, key)}
        if dist.get_rank() == 0:
            yield from (part_of(name, tensor) for name, tensor in flattening.tensors.items())
            yield json_part(OPTIONS, document)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on with exported moments and options.

        Raises ValueError where they are those of other parameters, or make no sense.
        """
        found = {part.name: part for part in parts}
        if OPTIONS not in found:
            raise ValueError(f"The saved optimizer lacks its document {OPTIONS!r}.")
        document = json_value(found[OPTIONS])
        try:
            if document.get(NUMBERED):
                document = by_name(document, self._present_names(), self._model)
            self._refuse_other_groups(document["groups"])
            self._refuse_other_shapes(document["state"], found)
            restoring = Restoring(found, classes_near(self._partitions.optimizer), holds=False)
            for live, saved in zip(self._partitions.optimizer.param_groups, document["groups"], strict=True):
                live.update({key: restoring.restore(value) for key, value in saved.items() if key != "params"})
            for parameter in self._parameters():
                self._take(parameter, document, found)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"The saved optimizer makes no sense: {error!r}.") from error
        for key, value in document.get(LOSS_SCALE, {}).items():
            if self._scaler is not None and hasattr(self._scaler, key):
                setattr(self._scaler, key, value)

    def _parameters(self) -> Iterator[Tensor]:
        for group in self._partitions.groups:
            yield from group

    def _exported(self, parameter: Tensor, name: str, state: dict[str, Any]) -> Iterator[Part]:
        """The parts of a parameter, on rank 0; what the document says of them is entered in `state`."""
        partitions = self._partitions
        place = partitions.place(parameter)
        assert place is not None
        with partitions.at_hand(place.holder):
            kept: dict[str, Any] = dict(partitions.state(place.holder))
            if parameter.dtype != partitions.master(place.holder).dtype:
                kept[MASTERS] = partitions.master(place.holder)
            for key, value in kept.items():
                tensor = value
                if partitions.is_moment(place.holder, value):
                    tensor = partitions.whole(parameter, value)
                elif isinstance(value, Tensor):
                    tensor = value.detach().cpu().clone() if dist.get_rank() == 0 else None
                else:
                    state[key] = value
                    continue
                label = f"{name}.{key}"
                state[key] = {TENSOR: label}
                if tensor is not None:
                    yield part_of(label, tensor)

    def _take(self, parameter: Tensor, document: Mapping[str, Any], found: Mapping[str, Part]) -> None:
        """Bring this process's stretch of a parameter's saved state into the flat tensors."""
        partitions, name = self._partitions, self._names[id(parameter)]
        place = partitions.place(parameter)
        assert place is not None
        with partitions.at_hand(place.holder):
            live, flat = partitions.state(place.holder), partitions.master(place.holder)
            for key, value in document["state"].get(name, {}).items():
                if not (isinstance(value, dict) and TENSOR in value):
                    live[key] = Restoring(found).restore(value)
                    continue
                tensor = tensor_of(found[value[TENSOR]])
                if key == COUNTER or tensor.shape != whole_shape(parameter):
                    live[key] = tensor
                    continue
                if key not in live or live[key].dtype != tensor.dtype:
                    live[key] = torch.zeros_like(flat, dtype=tensor.dtype)
                partitions.put(parameter, live[key], tensor)
            if name in document.get(MASTERS, {}):
                partitions.put(parameter, flat, tensor_of(found[document[MASTERS][name][TENSOR]]))

    def _present_names(self) -> list[list[str]]:
        return [[self._names[id(parameter)] for parameter in group] for group in self._partitions.groups]

    def _refuse_other_groups(self, groups: list[dict[str, Any]]) -> None:
        present = self._present_names()
        saved = [group["params"] for group in groups]
        if saved != present:
            raise ValueError(
                f"The saved optimizer has the parameter groups {saved}, and this one has {present}; "
                "resume with the model and the weight decay that it was saved with."
            )

    def _refuse_other_shapes(self, state: Mapping[str, Any], found: Mapping[str, Part]) -> None:
        for parameter in self._parameters():
            name = self._names[id(parameter)]
            for value in state.get(name, {}).values():
                if not (isinstance(value, dict) and TENSOR in value):
                    continue
                there, here = found[value[TENSOR]].shape, tuple(whole_shape(parameter))
                if there not in ((), here):
                    raise ValueError(f"{value[TENSOR]} is of shape {there} there, and {name} of {here} here.")
