"""What exports and loads the state of models and optimizers of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from hexloop.adapters.contents.checkpoint import sharded_files_of
from hexloop.adapters.contents.safetensors_files import MODEL, is_weights
from hexloop.adapters.snapshots.torch import TorchSnapshots
from hexloop.adapters.trainable.torch.decay_groups import decayed_names
from hexloop.adapters.trainable.torch.layouts import WHOLE, OwnLayout, TorchLayout, shape_of
from hexloop.adapters.trainable.torch.model_state import ModelState, is_derived
from hexloop.adapters.trainable.torch.names import by_own_names, fitting_names, wrapped_as
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import is_sharded, own_state, writers
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.ports.parallelism import ExportableModel, Sharding
from hexloop.ports.state import Exportable

LARGEST = 5_000_000_000
"""Bytes of the largest file of weights, unless a single tensor is larger."""


def snapshots(parts: TrainerParts) -> TorchSnapshots:
    """Return snapshots whose copies are complete before the optimizer changes what they copy."""
    made = TorchSnapshots()
    if parts.adapters.device.capabilities.pins_memory:
        parts.optimizer.register_step_pre_hook(lambda *_: made.wait_before_update())
    return made


# Model and optimizer


def model_state(parts: TrainerParts, kept: Callable[[str], bool] | None = None) -> ExportableModel:
    """Return what exports and loads the weights, or those for whose names `kept` returns True.

    They are what the layout of `parts.averages` has in their place, if there is one.
    """
    count = writers(parts)
    if engine := own_state(parts):
        return engine.model_state(parts.model_wrapped, count, kept)
    return ModelState(parts.unwrapped_model, parts.averages.layout or layout_of(parts), count, kept)


def optimizer_state(parts: TrainerParts) -> Exportable:
    """Return what exports and loads the optimizer.

    Raises CheckpointError if the engine's state is unknown, and ConfigurationError if the run saves checkpoints which
    could not contain all of the optimizer's state.
    """
    if engine := own_state(parts):
        return engine.optimizer_state(parts.model_wrapped, parts.optimizer)
    state = OptimizerState(parts.unwrapped_model, parts.optimizer, layout_of(parts))
    if _saves_optimizer(parts.args) and (problems := list(state.problems())):
        raise ConfigurationError(
            f"Checkpoints would lose state of the optimizer: {'; '.join(problems)}. Or set save_strategy='no'."
        )
    return state


def _saves_optimizer(args: TrainingArguments) -> bool:
    return str(getattr(args.save_strategy, "value", args.save_strategy)) != "no" and not args.save_only_model


def kept_state(parts: TrainerParts) -> Mapping[str, Exportable]:
    """Return what a copy in memory holds of sharded state: what this process holds itself."""
    if engine := own_state(parts):
        return engine.kept_state(parts.model_wrapped, parts.optimizer)
    if not is_sharded(parts.adapters.parallelism, parts.model):
        return {}
    model, layout = parts.unwrapped_model, OwnLayout(layout_of(parts))
    return {"model": ModelState(model, layout), "optimizer": OptimizerState(model, parts.optimizer, layout)}


def group_sizes(parts: TrainerParts) -> Sequence[int]:
    """Return how many of the model's parameters are in each of the optimizer's groups."""
    if engine := own_state(parts):
        return engine.group_sizes(parts.model_wrapped, parts.optimizer)
    return [len(group["params"]) for group in parts.optimizer.param_groups]


def named_weights(model: Any) -> Mapping[str, Tensor]:
    """Return the tensors of a model that is not sharded, each under one name."""
    return ModelState(model).named_tensors()


def weights_to_write(model: Any, state_dict: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the weights for `save_pretrained` of a model; None if those of the model's state dict are right as it is.

    They have the names of the model without wrappers. Tensors that share memory, as views and buffers with two names
    do, are copied, because safetensors refuses them; weights that the model declares as tied stay tied.
    state_dict: the weights to write; the model's own if None.
    """
    own = by_own_names(model, model.state_dict())
    named = own if state_dict is None else state_dict
    if state_dict is not None:
        names = fitting_names(state_dict, own)
        named = {names[name]: value for name, value in state_dict.items()}
    hosted = on_host(model, named)
    named = {**named, **hosted}
    copies = hosted | separated(named, tied=partial(is_derived, model))
    changes = state_dict is not None or bool(copies) or any(map(wrapped_as, model.modules()))
    return {**named, **copies} if changes else None


def on_host(model: Any, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return host copies of the tensors without memory that a file could be written from, a tied parameter once."""
    found = {name: each for name, each in tensors.items() if isinstance(each, Tensor) and not _has_memory(each)}
    if not found:
        return {}
    parameters = by_own_names(model, dict(model.named_parameters(remove_duplicate=False)))
    copies: dict[int, Tensor] = {}
    return {
        name: copies.setdefault(id(parameters.get(name, each)), each.detach().cpu()) for name, each in found.items()
    }


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has memory of its own, as one of XLA or of another class does not."""
    try:
        tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return tensor.device.type == "meta" or type(tensor) not in (Tensor, torch.nn.Parameter)
    return True


def separated(tensors: Mapping[str, Any], tied: Callable[[str], bool] = lambda name: False) -> dict[str, Tensor]:
    """Return copies of the tensors that share memory with another, but for one of each group of `tied` names."""
    groups: dict[tuple[torch.device, int], list[str]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.numel() and tensor.device.type != "meta":
            with suppress(NotImplementedError, RuntimeError):  # a tensor of another class, without memory of its own
                groups.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append(name)
    found: dict[str, Tensor] = {}
    for names in groups.values():
        separate = [name for name in names if not tied(name)]
        if len(separate) < len(names):
            separate = separate[1:]
        if len(names) > 1:
            found |= {name: tensors[name].detach().clone(memory_format=torch.contiguous_format) for name in separate}
    return found


def parameter_shapes(parts: TrainerParts) -> list[list[Any]]:
    """Return the name, the shape and the dtype of each parameter, all of them JSON."""
    layout = layout_of(parts)
    return [
        [name, *shape_of(tensor, tensor, layout), str(tensor.dtype)]
        for name, tensor in layout.parameters(parts.unwrapped_model).items()
    ]


def names_without_decay(parts: TrainerParts) -> list[str]:
    """Return the trainable parameters to which weight decay does not apply by default, by their original names."""
    model = parts.unwrapped_model
    names = {id(parameter): name for name, parameter in layout_of(parts).parameters(model).items()}
    decayed = frozenset(decayed_names(model))
    trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    return [names[id(parameter)] for name, parameter in trained if name not in decayed]


def own_class(model: Any) -> type[Any]:
    """Return the model's class, without those that torch.distributed puts before it."""
    return next(kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch.distributed."))


# Sharded models


def layout_of(parts: TrainerParts) -> TorchLayout:
    """Return how the model's tensors are distributed over processes."""
    if not is_sharded(parts.adapters.parallelism, parts.model):
        return WHOLE
    return cast("Sharding[Any, Any, Any]", parts.adapters.parallelism).layout


def refuse_unprepared(adapters: Adapters, model: Any) -> None:
    """Raise RunStateError if this process never had the model's weights and no run has prepared the model yet."""
    if is_sharded(adapters.parallelism, model):
        return
    parameters = list(model.parameters())
    for reason in filter(None, map(adapters.engine.unprepared, parameters)):
        raise RunStateError(reason)
    if any(parameter.is_meta for parameter in parameters):
        raise RunStateError(
            "The model cannot be evaluated or saved: it is on torch's meta device and has no weights before a run has "
            "prepared it. Train first, or create it on a real device."
        )


def save_sharded(parts: TrainerParts, folder: str) -> None:
    """Write the weights of a sharded model, in several files with an index if needed. Collective."""
    collectives, mesh = parts.adapters.collectives, parts.adapters.mesh
    count = writers(parts)
    tensors = list(ModelState(parts.unwrapped_model, layout_of(parts), count).export())
    if mesh.writes:
        for name in filter(is_weights, os.listdir(folder)):
            os.remove(os.path.join(folder, name))
    collectives.barrier("earlier weights are removed")
    for file in sharded_files_of(MODEL, tensors, LARGEST, mesh.rank, count):
        with open(os.path.join(folder, file.path), "wb") as written:
            written.writelines(file.chunks)
    collectives.barrier("the weights are written")
