"""The moments of an optimizer whose parameters DeepSpeed has cut up, under the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.engines.deepspeed.partitions import Place, ZeroPartitions, whole_shape
from hexloop.adapters.trainable.torch.layouts import WHOLE, Entry, TorchLayout, WholeLayout, dealt_part
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.numbering import NUMBERED, by_name
from hexloop.adapters.trainable.torch.optimizer_state import OPTIONS
from hexloop.adapters.trainable.torch.serialization import (
    TENSOR,
    TYPES,
    StateDecoder,
    StateEncoder,
    package_classes,
    read_slice,
    read_tensor,
)
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.state import Part

MASTERS = "masters"
"""The entry of full-precision weights, where the model's own are of a half format."""

LOSS_SCALE = "loss_scale"
COUNTER = "step"
"""The one tensor of an optimizer's state that is no moment, even of a parameter of one number."""

SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What DeepSpeed's loss scaler keeps between steps."""


@frozen
class Leaving:
    """A tensor that leaves: what is kept as `key` in the flat tensor `holder` of a parameter; or an option, of none."""

    entry: Entry
    holder: int | None = None
    parameter: Tensor | None = None
    key: str = ""


class ZeroOptimizerState:
    """Answers the Exportable port for the optimizer of an engine. Both methods are collective where moments are spread.

    What leaves has the form in which one process exports an optimizer over the same model, so that a run may go on with
    another number of processes, or without DeepSpeed: whole moments, each under its parameter's name, and each from the
    process that it falls to.
    """

    def __init__(self, model: nn.Module, partitions: ZeroPartitions, scaler: Any = None) -> None:
        self._model = model
        self._partitions = partitions
        self._layout = WholeLayout(dist.get_rank(), dist.get_world_size()) if partitions.is_spread else WHOLE
        self._scaler = scaler
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}

    def export(self) -> Iterator[Part]:
        """Each tensor as "<parameter>.<moment>", and everything else as one JSON document."""
        optimizer = self._partitions.optimizer
        flattening = StateEncoder(type(optimizer).__qualname__, package_classes(optimizer))
        document: dict[str, Any] = {"groups": [], "state": {}}
        for group, parameters in zip(optimizer.param_groups, self._partitions.groups, strict=True):
            options = {key: value for key, value in group.items() if key != "params"}
            document["groups"].append(
                {key: flattening.flatten(value, f"group.{key}") for key, value in options.items()}
                | {"params": [self._names[id(parameter)] for parameter in parameters]}
            )
        leaving = [
            Leaving(Entry(name, tensor, tuple(tensor.shape), tensor.dtype))
            for name, tensor in flattening.tensors.items()
        ]
        for holder, parameters in self._by_holder():
            with self._partitions.at_hand(holder):
                for parameter in parameters:
                    leaving += self._described(holder, parameter, document)
        if self._scaler is not None:
            document[LOSS_SCALE] = {key: getattr(self._scaler, key) for key in SCALER if hasattr(self._scaler, key)}
        yield from self._dealt(leaving)
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
            restoring = StateDecoder(found, package_classes(self._partitions.optimizer), holds=False)
            for live, saved in zip(self._partitions.optimizer.param_groups, document["groups"], strict=True):
                live.update({key: restoring.restore(value) for key, value in saved.items() if key != "params"})
            for holder, parameters in self._by_holder():
                with self._partitions.at_hand(holder):
                    for parameter in parameters:
                        self._take(holder, parameter, document, found)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"The saved optimizer makes no sense: {error!r}.") from error
        for key, value in document.get(LOSS_SCALE, {}).items():
            if self._scaler is not None and hasattr(self._scaler, key):
                setattr(self._scaler, key, value)

    def _by_holder(self) -> Iterator[tuple[int, list[Tensor]]]:
        """The parameters in the order of the groups, those together that follow one another in a flat tensor."""
        parameters = (parameter for group in self._partitions.groups for parameter in group)
        for holder, each in groupby(parameters, lambda parameter: self._place(parameter).holder):
            yield holder, list(each)

    def _place(self, parameter: Tensor) -> Place:
        place = self._partitions.place(parameter)
        assert place is not None, "an optimizer trains it"
        return place

    def _kept(self, holder: int, parameter: Tensor) -> dict[str, Any]:
        """What the optimizer keeps of the flat tensor that a parameter lies in, and that where it is more precise."""
        master = self._partitions.master(holder)
        kept = dict(self._partitions.state(holder))
        return kept if parameter.dtype == master.dtype else {**kept, MASTERS: master}

    def _described(self, holder: int, parameter: Tensor, document: dict[str, Any]) -> Iterator[Leaving]:
        """The tensors that are kept of a parameter; the document says of them, and holds what is no tensor."""
        name, state = self._names[id(parameter)], {}
        for key, value in self._kept(holder, parameter).items():
            if not isinstance(value, Tensor):
                state[key] = value
                continue
            label, shape, spread = f"{name}.{key}", tuple(value.shape), None
            if self._partitions.is_moment(holder, value):
                shape, spread = tuple(whole_shape(parameter)), self._partitions.spread(parameter)
            state[key] = {TENSOR: label}
            yield Leaving(Entry(label, None, shape, value.dtype, spread), holder, parameter, key)
        if MASTERS in state:
            document.setdefault(MASTERS, {})[name] = state.pop(MASTERS)
        if state:
            document["state"][name] = state

    def _dealt(self, leaving: Sequence[Leaving]) -> Iterator[Part]:
        """A part for each tensor, those of a flat tensor together, as it may have to be brought in from a disk."""
        owners = assign_to_ranks([each.entry.size for each in leaving], self._layout.world_size)
        for holder, together in groupby(zip(leaving, owners, strict=True), lambda pair: pair[0].holder):
            with self._partitions.at_hand(holder):
                for each, owner in together:
                    yield dealt_part(each.entry, self._own(each), owner, self._layout.rank)

    def _own(self, leaving: Leaving) -> Tensor | None:
        """What this process has of a tensor that leaves."""
        if leaving.holder is None or leaving.parameter is None:
            return leaving.entry.tensor
        kept: Tensor = self._kept(leaving.holder, leaving.parameter)[leaving.key]
        if not self._partitions.is_moment(leaving.holder, kept):
            return kept
        own = self._partitions.stretch(leaving.parameter, kept)
        return own if leaving.entry.spread is not None else own.view(leaving.entry.shape)

    def _take(self, holder: int, parameter: Tensor, document: Mapping[str, Any], found: Mapping[str, Part]) -> None:
        """Bring this process's stretch of a parameter's saved state into the flat tensors."""
        partitions, name, place = self._partitions, self._names[id(parameter)], self._place(parameter)
        live, flat = partitions.state(holder), partitions.master(holder)

        def fill(flat: Tensor, part: Part) -> None:
            partitions.stretch(parameter, flat).copy_(read_slice(part, place.start, place.length))

        for key, value in document["state"].get(name, {}).items():
            if not (isinstance(value, dict) and TENSOR in value):
                live[key] = StateDecoder(found).restore(value)
                continue
            part = found[value[TENSOR]]
            if key == COUNTER or part.shape != whole_shape(parameter):
                live[key] = read_tensor(part)
                continue
            if key not in live or live[key].dtype != TYPES[part.dtype]:
                live[key] = torch.zeros_like(flat, dtype=TYPES[part.dtype])
            fill(live[key], part)
        if name in document.get(MASTERS, {}):
            fill(flat, found[document[MASTERS][name][TENSOR]])

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
        for parameter in (parameter for group in self._partitions.groups for parameter in group):
            name = self._names[id(parameter)]
            for value in state.get(name, {}).values():
                if not (isinstance(value, dict) and TENSOR in value):
                    continue
                there, here = found[value[TENSOR]].shape, tuple(whole_shape(parameter))
                if there not in ((), here):
                    raise ValueError(f"{value[TENSOR]} is of shape {there} there, and {name} of {here} here.")


class ZeroModelState(ModelState):
    """Answers the Exportable port for the module of an engine. Both methods are collective.

    partitions: the full-precision masters of the weights, which follow what is loaded; None where there are none.
    """

    def __init__(
        self, engine: Any, layout: TorchLayout, partitions: ZeroPartitions | None, writers: int | None = None
    ) -> None:
        super().__init__(engine.module, layout, writers)
        self._partitions = partitions

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors, and let the masters follow."""
        found = {part.name: part for part in parts}
        super().load(found.values())
        if self._partitions is not None:
            self._follow(self._partitions, found)

    def _copy(self, own: Mapping[str, Tensor], found: Mapping[str, Part]) -> None:
        """Of the tensors that are spread each is read by one process, and comes to the others by the engine."""
        spread = {name: tensor for name, tensor in own.items() if hasattr(tensor, "ds_id")}
        super()._copy({name: tensor for name, tensor in own.items() if name not in spread}, found)
        sizes = [prod(found[name].shape) for name in spread]
        readers = assign_to_ranks(sizes, self._layout.world_size)
        for (name, tensor), reader in zip(spread.items(), readers, strict=True):
            with _gathered(tensor, reader):
                if reader == self._layout.rank:
                    tensor.copy_(read_tensor(found[name]))

    def _follow(self, partitions: ZeroPartitions, found: Mapping[str, Part]) -> None:
        for name, tensor in self._state().items():
            place = partitions.place(tensor)
            if name in found and place is not None:
                partitions.follow(tensor, read_slice(found[name], place.start, place.length).to(tensor.dtype))


def _gathered(parameter: Tensor, reader: int) -> Any:
    """Within, a spread parameter is whole in every process; it becomes what the one that reads it writes there."""
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=reader)
