"""Averages of a model's weights: how they take the place of those that are trained, and what a checkpoint has of them.

What computes the averages is in `optimizer_modes` and `moving_averages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve, field
from torch import Tensor, nn
from torch.nn import Parameter

from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout, assigned_parts, entry_of, shape_of
from hexloop.adapters.trainable.torch.model_state import owners
from hexloop.adapters.trainable.torch.serialization import read_box, read_tensor, tensor_part
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.schemas import shown
from hexloop.domain.wording import listed
from hexloop.ports.mesh import Mesh, Spread
from hexloop.ports.state import JSON, Exportable, Part

DOCUMENT = "averages"
"""The name of the JSON document that describes saved averages."""

TRAINING, AVERAGE = "training.", "average."
"""Begin the names of saved tensors: of the weights that are trained, and of averages in full precision."""


def trained_weights(parts: Iterable[Part]) -> dict[str, Part]:
    """Return, by the names in the model, the weights that are trained among saved averages."""
    found = (part for part in parts if part.name.startswith(TRAINING))
    return {(name := part.name.removeprefix(TRAINING)): evolve(part, name=name) for part in found}


class AveragedWeights:
    """Averages of a model's weights, which can take their place in the model for some time.

    `show` copies the weights that are trained, and puts the averages into the model; `hide` copies them back. No
    arithmetic undoes a change, so that training continues bit-identically. This takes memory for one more copy of the
    averaged weights while they are shown. Buffers, such as the statistics of a batch normalization, are those of the
    model that is trained.

    parameters: those that are averaged, by name. layout: how they are distributed; each rank averages what it holds.
    further: parameters that the averages change as well, although the model does not have them.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        layout: TorchLayout = WHOLE,
        further: Iterable[Tensor] = (),
    ) -> None:
        self.model, self.parameters, self.layout = model, dict(parameters), layout
        self._changed = [*self.parameters.values(), *further]
        self._depth = 0
        self._training: list[Tensor] | None = None
        self._saved: SavedAverages | None = None

    @property
    def shown(self) -> bool:
        """Whether the averages are in the model."""
        return self._depth > 0

    def show(self) -> None:
        """Put the averages into the model, until `hide` has been called as often."""
        if self._depth == 0:
            self._enter()
        self._depth += 1

    def hide(self) -> None:
        """Put the weights that are trained back, if no other call of `show` is left."""
        self._depth -= 1
        if self._depth == 0:
            self._leave()

    def conceal(self) -> Callable[[], None]:
        """Put the weights that are trained back for some time; return what shows the averages again."""
        depth, self._depth = self._depth, 0
        if depth:
            self._leave()

        def show_again() -> None:
            if depth:
                self._enter()
            self._depth = depth

        return show_again

    def settle(self) -> None:
        """Leave the averages in the model, because training is over."""
        self.show()
        self._training = None

    def _enter(self) -> None:
        self._free()
        with torch.no_grad():
            self._training = [self.local(each).clone() for each in self._changed]
            try:
                self._put_averages()
            except BaseException:
                self._leave()
                raise

    def _leave(self) -> None:
        before, self._training = self._training, None
        self._free()
        self._before_training()
        if before:
            with torch.no_grad():
                torch._foreach_copy_(list(map(self.local, self._changed)), before)

    def _put_averages(self) -> None:
        """Replace the weights in the model by their averages."""
        raise NotImplementedError

    def _before_training(self) -> None:
        """Prepare for weights that are trained, which are put into the model next."""

    def _free(self) -> None:
        """Let a sharded model forget weights that it has gathered: its shards are about to change."""
        if not self.layout.whole:
            self.layout.state(self.model)
            self.layout.parameters(self.model)

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's elements of a parameter or of its average."""
        return tensor.detach() if self.layout.whole else self.layout.local(tensor)

    # Checkpoints

    kind = ""
    """What computes the averages, as checkpoints note it."""

    beside = False
    """Whether the weights that are trained are evaluated and saved as well, and the averages beside them."""

    @property
    def started(self) -> bool:
        """Whether the averages differ from the weights that are trained."""
        return True

    def exported(self) -> Mapping[int, Tensor]:
        """Return the averages by the id of their parameter, in its type. They stay as they are until the next step."""
        raise NotImplementedError

    def precise(self) -> Mapping[str, Tensor]:
        """Return the averages that have another type than their parameters, by name."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint notes."""
        return {"kind": self.kind, "started": self.started, "replaced": not self.beside}

    def export(self) -> Iterator[Part]:
        """Export what the files of the model do not hold: the weights that are trained, and averages in float32."""
        tensors = dict[str, tuple[Tensor, Tensor]]()
        if self.started:
            if not self.beside:
                tensors |= {TRAINING + name: (each, each) for name, each in self.parameters.items()}
            tensors |= {AVERAGE + name: (each, self.parameters[name]) for name, each in self.precise().items()}
        if self.layout.whole:
            yield from (tensor_part(name, tensor) for name, (tensor, _) in tensors.items())
        else:
            entries = [entry_of(name, *pair, self.layout) for name, pair in tensors.items()]
            yield from assigned_parts(entries, self.layout)
        yield json_part(DOCUMENT, self.describe())

    def load(self, parts: Iterable[Part]) -> None:
        """Take what a checkpoint has, for `resume`. Raises ValueError, changing nothing, if it does not fit."""
        self._saved = SavedAverages.of(list(parts), self.parameters, self.layout)

    def resume(self, updates: int) -> None:
        """Continue with what was loaded: the averages, and the weights that are trained.

        It is called once everything is loaded: the model then has what its files in the checkpoint hold.
        updates: of the optimizer so far.
        """
        saved, self._saved = self._saved, None
        self._free()
        with torch.no_grad():
            self._resume_averages(saved, updates)
            self._before_training()
            if saved is not None:
                for name, part in saved.training.items():
                    self.fill(self.parameters[name], self.parameters[name], part)

    def _resume_averages(self, saved: SavedAverages | None, updates: int) -> None:
        """Continue with saved averages. saved: None if the checkpoint has none."""

    def fill(self, tensor: Tensor, parameter: Tensor, part: Part) -> None:
        """Fill a parameter, or a tensor that is distributed like it, with what was saved."""
        spread = self.layout.spread(parameter, parameter)
        if spread is None:
            tensor.copy_(read_tensor(part))
        else:
            local = self.local(tensor)
            local.copy_(read_box(part, spread).view(local.shape))

    def kept(self) -> Mapping[str, Exportable]:
        """Return what a copy in memory holds of the averages, besides the model and the optimizer."""
        return {}


@define(eq=False)
class SavedAverages:
    """What a checkpoint has of averages. document: how they were computed. training, precise: tensors by parameter."""

    document: Mapping[str, Any]
    training: Mapping[str, Part]
    precise: Mapping[str, Part]

    @classmethod
    def of(
        cls, parts: Sequence[Part], parameters: Mapping[str, Tensor], layout: TorchLayout = WHOLE
    ) -> SavedAverages | None:
        """Return what the parts hold; None if there are none. Raises ValueError if they do not fit the parameters."""
        if not parts:
            return None
        document: Any = next((json_value(part) for part in parts if part.name == DOCUMENT and part.dtype == JSON), None)
        if document is None or not _is_valid(document):
            raise ValueError(f"the saved averages have no valid document {DOCUMENT!r}")
        tensors = {part.name: part for part in parts if part.dtype != JSON}
        training, precise = (
            {name.removeprefix(start): part for name, part in tensors.items() if name.startswith(start)}
            for start in (TRAINING, AVERAGE)
        )
        problems = [f"{name} is unknown" for name in tensors if not name.startswith((TRAINING, AVERAGE))]
        if document["started"] and document["replaced"]:
            problems += [f"the trained weights of {name} are missing" for name in parameters.keys() - training.keys()]
        for name, part in (*training.items(), *precise.items()):
            if (own := parameters.get(name)) is None:
                problems.append(f"{name} is not a parameter that is averaged")
            elif part.shape != (shape := shape_of(own, own, layout)):
                problems.append(f"{name} has shape {part.shape} in the checkpoint and {shape} in the model")
        if problems:
            raise ValueError(f"The saved averages do not fit the model: {listed(sorted(problems), '; ', shown)}.")
        return cls(document, training, precise)


def _is_valid(document: Any) -> bool:
    """Return whether that is what `AveragedWeights.describe` returns."""
    if not isinstance(document, dict) or document.keys() != {"kind", "started", "replaced"}:
        return False
    truths = document["started"], document["replaced"]
    return isinstance(document["kind"], str) and all(isinstance(each, bool) for each in truths)


# What is averaged, and its tensors under the names of the model


def averaged_parameters(model: nn.Module, optimizer: Any, layout: TorchLayout = WHOLE) -> dict[str, Tensor]:
    """Return the model's parameters that an optimizer updates, by the names under which checkpoints have them.

    A tied parameter is there once, and none that is frozen.

    Raises ConfigurationError for a parameter of a class of its own, such as a quantized one.
    """
    updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
    owner_of = owners(model, {name: each for name, each in layout.state(model).items() if isinstance(each, Tensor)})
    named = {owner_of.get(name, name): each for name, each in layout.parameters(model).items()}
    found = {name: each for name, each in named.items() if id(each) in updated}
    found = {name: each for name, each in found.items() if each.is_floating_point() or each.is_complex()}
    if layout.whole and (others := [name for name, each in found.items() if type(each) not in (Tensor, Parameter)]):
        kind = type(found[others[0]]).__name__
        raise ConfigurationError(
            f"The weights {listed(others, ', ')} are of the class {kind}, whose averages cannot be computed; train "
            "adapters of PEFT on such a model, or leave ema_decay out and choose an optimizer without modes."
        )
    return found


@define(eq=False)
class AveragedLayout:
    """Layout of a model as if it had the averages in place of its parameters.

    inner: how the tensors are distributed. values: the averages by the id of their parameter; none by default.
    """

    inner: TorchLayout
    values: Mapping[int, Tensor] = field(factory=dict)
    _origins: dict[int, Tensor] = field(factory=dict, init=False)

    @property
    def mesh(self) -> Mesh:
        """The processes."""
        return self.inner.mesh

    @property
    def whole(self) -> bool:
        """Whether every rank holds all of every tensor."""
        return self.inner.whole

    @property
    def uneven(self) -> bool:
        """Whether a rank may hold no element of a parameter."""
        return self.inner.uneven

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the state dict with the averages."""
        found = dict(self.inner.state(model))
        for name, each in found.items():
            if (average := self.values.get(id(each))) is not None:
                self._origins[id(average)] = each
                found[name] = average
        return found

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the parameters themselves."""
        return self.inner.parameters(model)

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return how an average is distributed: as its parameter."""
        origin = self._origins.get(id(tensor))
        return self.inner.spread(tensor, parameter) if origin is None else self.inner.spread(origin, origin)

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's elements."""
        return self.inner.local(tensor)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return a tensor that is distributed like a parameter."""
        return self.inner.like(parameter, local)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm over all ranks."""
        return self.inner.norm(own)

    def use(self, values: Mapping[int, Tensor]) -> None:
        """Use these averages from now on."""
        self.values, self._origins = values, {}
