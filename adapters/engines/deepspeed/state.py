"""The weights and moments of a DeepSpeed engine, exported and loaded as those of a plain model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from math import prod
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.engines.deepspeed.partitions import ZeroPartitions, whole_shape
from hexloop.adapters.trainable.torch.layouts import (
    WHOLE,
    OwnLayout,
    TensorEntry,
    TorchLayout,
    WholeLayout,
    assigned_part,
)
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.moments import MomentSpec, check_moments
from hexloop.adapters.trainable.torch.optimizer_document import OPTIONS, checked_document, refuse_invalid_counters
from hexloop.adapters.trainable.torch.optimizer_state import check_groups
from hexloop.adapters.trainable.torch.parameter_groups import (
    NUMBERED,
    STATE_KEYS,
    GroupValues,
    by_name,
    of_parameters,
    regrouped,
)
from hexloop.adapters.trainable.torch.serialization import (
    TENSOR,
    TYPES,
    StateDecoder,
    StateEncoder,
    package_classes,
    read_slice,
    read_tensor,
    tensor_part,
)
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.state import Part

MASTERS = "masters"
"""The entry of full-precision weights, if the model's own are in a half format."""

LOSS_SCALE = "loss_scale"
COUNTER = "step"
"""The one tensor in an optimizer's state that is not a moment, even of a parameter with one element."""

SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""The attributes of DeepSpeed's loss scaler that change from step to step."""


@frozen
class Outgoing:
    """A tensor to export: the state `key` of a parameter in the flat tensor number `flat`, or a group's option."""

    entry: TensorEntry
    flat: int | None = None
    parameter: Tensor | None = None
    key: str = ""


class ZeroOptimizerState:
    """Exportable adapter for the optimizer of an engine. Both methods are collective if the moments are partitioned.

    The parts have the form in which one process exports an optimizer over the same model: whole moments under their
    parameter's name, each from the rank that it is assigned to. So a run may resume with another number of ranks, or
    without DeepSpeed.
    """

    def __init__(self, model: nn.Module, partitions: ZeroPartitions, scaler: Any = None) -> None:
        self._model = model
        self._partitions = partitions
        self._layout = WholeLayout(partitions.mesh) if partitions.is_spread else WHOLE
        self._scaler = scaler
        self._names = {id(parameter): name for name, parameter in self._layout.parameters(model).items()}
        self._groups = GroupValues(partitions.optimizer)

    def export(self) -> Iterator[Part]:
        """Yield each tensor as "<parameter>.<moment>", and everything else as one JSON document."""
        optimizer = self._partitions.optimizer
        flattening = StateEncoder(type(optimizer).__qualname__, package_classes(optimizer))
        document: dict[str, Any] = {"groups": [], STATE_KEYS: self._groups.state_keys(), "state": {}}
        groups = self._groups.export(flattening, optimizer.param_groups)
        for values, names in zip(groups, self._present_names(), strict=True):
            document["groups"].append({**values, "params": names})
        outgoing = [
            Outgoing(TensorEntry(name, tensor, tuple(tensor.shape), tensor.dtype))
            for name, tensor in flattening.tensors.items()
        ]
        for flat, parameters in self._by_flat_tensor():
            with self._partitions.loaded(flat):
                for parameter in parameters:
                    outgoing += self._describe(flat, parameter, document)
        if self._scaler is not None:
            document[LOSS_SCALE] = _scale(self._scaler)
        yield from self._parts(outgoing)
        yield json_part(OPTIONS, document)

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported moments and options. Raises ValueError if they belong to other parameters, or are malformed."""
        found = {part.name: part for part in parts}
        if OPTIONS not in found:
            raise ValueError(f"The saved optimizer lacks its document {OPTIONS!r}.")
        document = checked_document(json_value(found[OPTIONS]))
        try:
            if document.get(NUMBERED):
                document = by_name(document, self._present_names(), self._model)
            document = of_parameters(document, self._names.values())
            document = regrouped(document, self._present_names())
            check_groups(document["groups"], self._present_names())
            self._refuse_other_shapes(document, found)
            restoring = StateDecoder(found, package_classes(self._partitions.optimizer), hides=False)
            self._groups.put(self._groups.taken(document, restoring))
            for flat, parameters in self._by_flat_tensor():
                with self._partitions.loaded(flat):
                    for parameter in parameters:
                        self._load_parameter(flat, parameter, document, found)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"The saved optimizer is malformed: {error!r}.") from error
        _set_scale(self._scaler, document.get(LOSS_SCALE) or {})

    def _by_flat_tensor(self) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the parameters in the order of the groups, together those that share a flat tensor."""
        parameters = chain.from_iterable(self._partitions.groups)
        for flat, each in groupby(parameters, lambda parameter: self._partitions.fragments[id(parameter)].flat):
            yield flat, list(each)

    def _kept(self, flat: int, parameter: Tensor) -> dict[str, Any]:
        """Return the optimizer's state of a parameter's flat tensor, with the master weights if more precise."""
        master = self._partitions.master(flat)
        kept = dict(self._partitions.state(flat))
        return kept if parameter.dtype == master.dtype else {**kept, MASTERS: master}

    def _describe(self, flat: int, parameter: Tensor, document: dict[str, Any]) -> Iterator[Outgoing]:
        """Yield the tensors in a parameter's state. The document lists them, and holds all that is not a tensor."""
        name, state = self._names[id(parameter)], {}
        for key, value in self._kept(flat, parameter).items():
            if not isinstance(value, Tensor):
                state[key] = value
                continue
            label, shape, spread = f"{name}.{key}", tuple(value.shape), None
            if self._partitions.is_moment(flat, value):
                shape, spread = tuple(whole_shape(parameter)), self._partitions.spread(parameter)
            state[key] = {TENSOR: label}
            yield Outgoing(TensorEntry(label, None, shape, value.dtype, spread), flat, parameter, key)
        if MASTERS in state:
            document.setdefault(MASTERS, {})[name] = state.pop(MASTERS)
        if state:
            document["state"][name] = state

    def _parts(self, outgoing: Sequence[Outgoing]) -> Iterator[Part]:
        """Yield a part for each tensor, together those of a flat tensor, which may have to be read from disk."""
        owners = assign_to_ranks([each.entry.size for each in outgoing], self._layout.mesh.size)
        for flat, together in groupby(zip(outgoing, owners, strict=True), lambda pair: pair[0].flat):
            with self._partitions.loaded(flat):
                for each, owner in together:
                    yield assigned_part(each.entry, self._own(each), owner, self._layout.mesh.rank)

    def _own(self, outgoing: Outgoing) -> Tensor | None:
        """Return the elements that this rank has of a tensor to export."""
        if outgoing.flat is None or outgoing.parameter is None:
            return outgoing.entry.tensor
        kept: Tensor = self._kept(outgoing.flat, outgoing.parameter)[outgoing.key]
        if not self._partitions.is_moment(outgoing.flat, kept):
            return kept
        own = self._partitions.view(outgoing.parameter, kept)
        return own if outgoing.entry.spread is not None else own.view(outgoing.entry.shape)

    def _load_parameter(
        self, flat: int, parameter: Tensor, document: Mapping[str, Any], found: Mapping[str, Part]
    ) -> None:
        """Copy this rank's elements of a parameter's saved state into the flat tensors."""
        partitions, name = self._partitions, self._names[id(parameter)]
        fragment = partitions.fragments[id(parameter)]
        live, master = partitions.state(flat), partitions.master(flat)

        def fill(target: Tensor, part: Part) -> None:
            partitions.view(parameter, target).copy_(read_slice(part, fragment.start, fragment.length))

        for key, value in document["state"].get(name, {}).items():
            if not (isinstance(value, dict) and TENSOR in value):
                live[key] = StateDecoder(found).decode(value)
                continue
            part = found[value[TENSOR]]
            if key == COUNTER or part.shape != whole_shape(parameter):
                counter = read_tensor(part)
                refuse_invalid_counters(partitions.optimizer, {name: {key: counter}})
                live[key] = counter
                continue
            if key not in live or live[key].dtype != TYPES[part.dtype]:
                live[key] = torch.zeros_like(master, dtype=TYPES[part.dtype])
            fill(live[key], part)
        if name in document.get(MASTERS, {}):
            fill(master, found[document[MASTERS][name][TENSOR]])

    def _present_names(self) -> list[list[str]]:
        return [[self._names[id(parameter)] for parameter in group] for group in self._partitions.groups]

    def _refuse_other_shapes(self, document: Mapping[str, Any], found: Mapping[str, Part]) -> None:
        state = document["state"]
        expected = {
            self._names[id(each)]: MomentSpec(tuple(whole_shape(each)), {torch.float32, each.dtype}, fused=True)
            for each in chain.from_iterable(self._partitions.groups)
        }
        check_moments(self._partitions.optimizer, state, found, expected)
        for name, value in document.get(MASTERS, {}).items():
            if found[value[TENSOR]].shape != expected[name].shape:
                raise ValueError(
                    f"The saved full-precision {name} is of shape {found[value[TENSOR]].shape} there, and of "
                    f"{expected[name].shape} here."
                )
        for name, spec in expected.items():
            for value in state.get(name, {}).values():
                saved = found[value[TENSOR]] if isinstance(value, dict) and TENSOR in value else None
                if saved is not None and saved.shape not in ((), spec.shape):
                    raise ValueError(
                        f"{saved.name} has the shape {saved.shape} in the checkpoint, and {name} has {spec.shape}."
                    )


class ZeroOwnWeights(ModelState):
    """Exportable adapter for what this rank holds of an engine's weights, as it lies in memory.

    It fits only the same rank of the same run.
    """

    def __init__(self, engine: Any, layout: TorchLayout) -> None:
        super().__init__(engine.module, layout if layout.whole else OwnLayout(layout))
        self._zero = engine.optimizer

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into this rank's own tensors. Collective: weights that ZeRO 3 keeps whole are gathered."""
        persistent = getattr(self._zero, "persistent_parameters", ())
        if persistent:
            persistent[0].partition(persistent)
        super().load(parts)
        if persistent:
            self._zero.checkpoint_event_epilogue()


class ZeroOwnState:
    """Exportable adapter for what this rank holds of an engine's optimizer, as it lies in memory.

    It fits only the same rank of the same run, and nothing is exchanged.
    """

    def __init__(self, partitions: ZeroPartitions, scaler: Any = None) -> None:
        self._partitions = partitions
        self._scaler = scaler
        self._classes = package_classes(partitions.optimizer)
        self._groups = GroupValues(partitions.optimizer)

    def export(self) -> Iterator[Part]:
        """Yield the flat tensors and their state, and everything else as one JSON document."""
        optimizer = self._partitions.optimizer
        encoder = StateEncoder(type(optimizer).__qualname__, self._classes)
        document = {
            "groups": self._groups.export(encoder, optimizer.param_groups),
            STATE_KEYS: self._groups.state_keys(),
            LOSS_SCALE: _scale(self._scaler),
        }
        yield from (tensor_part(name, tensor) for name, tensor in encoder.tensors.items())
        states = []
        for flat in range(self._partitions.count):
            with self._partitions.loaded(flat) as from_disk:
                held = StateEncoder(type(optimizer).__qualname__, self._classes)
                state = {**self._partitions.state(flat), MASTERS: self._partitions.master(flat)}
                states.append(held.encode(state, f"flat.{flat}"))
                for name, tensor in held.tensors.items():
                    yield tensor_part(name, tensor.clone() if from_disk else tensor)
        yield json_part(OPTIONS, {**document, "state": states})

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the flat tensors, and restore their state."""
        found = {part.name: part for part in parts}
        document = json_value(found[OPTIONS])
        restoring = StateDecoder(found, self._classes, hides=False)
        self._groups.put(self._groups.taken(document, restoring))
        for flat, saved in enumerate(document["state"]):
            with self._partitions.loaded(flat):
                master, live = self._partitions.master(flat), self._partitions.state(flat)
                values = StateDecoder(found, self._classes, hides=False).decode(saved)
                master.copy_(values.pop(MASTERS))
                for key in live.keys() - values.keys():
                    del live[key]
                for key, value in values.items():
                    own = live.get(key)
                    if isinstance(own, Tensor) and isinstance(value, Tensor) and own.shape == value.shape:
                        own.copy_(value)
                    else:
                        live[key] = value.to(master.device) if self._partitions.is_moment(flat, value) else value
        _set_scale(self._scaler, document[LOSS_SCALE])


def _scale(scaler: Any) -> dict[str, Any]:
    """Return what changes of a loss scaler from step to step."""
    return {key: getattr(scaler, key) for key in SCALER if hasattr(scaler, key)}


def _set_scale(scaler: Any, saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        if value is not None and scaler is not None and hasattr(scaler, key):
            setattr(scaler, key, value)


class ZeroModelState(ModelState):
    """Exportable adapter for the module of an engine. Both methods are collective.

    partitions: the full-precision master weights, which are updated after a load; None if there are none.
    """

    def __init__(
        self,
        engine: Any,
        layout: TorchLayout,
        partitions: ZeroPartitions | None,
        writers: int | None = None,
        kept: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(engine.module, layout, writers, kept)
        self._partitions = partitions

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors, then update the master weights."""
        parts = list(parts)
        super().load(parts)
        if self._partitions is None:
            return
        found = self.named({part.name: part for part in parts})
        for name, tensor in self._state().items():
            fragment = self._partitions.fragments.get(id(tensor))
            if name in found and fragment is not None:
                saved = read_slice(found[name], fragment.start, fragment.length)
                self._partitions.update_master(tensor, saved.to(tensor.dtype))

    def _copy(self, own: Mapping[str, Tensor], found: Mapping[str, Part]) -> None:
        """Read each partitioned tensor on one rank; the engine distributes it to the others."""
        import deepspeed

        spread = {name: tensor for name, tensor in own.items() if hasattr(tensor, "ds_id")}
        super()._copy({name: tensor for name, tensor in own.items() if name not in spread}, found)
        sizes = [prod(found[name].shape) for name in spread]
        readers = assign_to_ranks(sizes, self._layout.mesh.size)
        for (name, tensor), reader in zip(spread.items(), readers, strict=True):
            with deepspeed.zero.GatheredParameters([tensor], modifier_rank=reader):
                if reader == self._layout.mesh.rank:
                    tensor.copy_(read_tensor(found[name]))
