"""What `trainer.accelerator` gets from the run and from accelerate, which is imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast
from weakref import WeakMethod

import torch

from hexloop.adapters.accelerator.accelerate import accelerator as accelerate_adapter
from hexloop.adapters.accelerator.accelerate.accelerator import (
    AcceleratorOptions,
    accelerator_arguments,
    has_other_recipe,
    is_preparable,
    make_accelerator,
    share_state,
    unwrapped_optimizer,
    whole_weights,
    with_objects_of_run,
)
from hexloop.adapters.accelerator.accelerate.importing import when_imported
from hexloop.adapters.accelerator.accelerate.signals import RunScaler, SharedSignals, is_shown
from hexloop.adapters.accelerator.accelerate.state import Processes, differences
from hexloop.adapters.batches.torch.loader import PreparedLoader, announce_passes
from hexloop.adapters.precision.autocast import Fp16Precision
from hexloop.adapters.precision.fp8 import Fp8Precision
from hexloop.adapters.trainable.torch.loss import MIXED
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.serialization import read_tensor
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.engines import fsdp_plugin_arguments, is_requested
from hexloop.app.environment import launched
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.parallelism import Sharding

__all__ = ["is_preparable", "unwrapped_optimizer", "whole_weights", "with_objects_of_run"]
"""Names of adapters that other modules of the app import from here."""

SHARING = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")
"""The settings of `accelerator_config` that an Accelerator's loaders follow."""

FSDP = ("fsdp1", "fsdp2")
"""The names of the parallelism of both versions of FSDP."""


BuildArguments = Callable[..., dict[str, Any]]


def options_of(args: TrainingArguments, adapters: Adapters, model: Any) -> AcceleratorOptions:
    """Return what an Accelerator of the run is made from."""
    config = args.accelerator_config
    loaders = {name: getattr(config, name) for name in SHARING}
    accumulation = getattr(config, "gradient_accumulation_kwargs", None) or {}
    parallelism: Any = adapters.parallelism
    precision = adapters.precision
    return AcceleratorOptions(
        processes=processes_of(adapters),
        mixed_precision=mixed_precision(adapters),
        recipe=precision.for_accelerate if isinstance(precision, Fp8Precision) else None,
        loaders={**loaders, "data_seed": args.data_seed},
        accumulation=accumulation,
        ddp=_ddp_options(args, model),
        compile_backend=(args.torch_compile_backend if args.torch_compile else None) or "no",
        compile_mode=args.torch_compile_mode if args.torch_compile else None,
        fsdp=fsdp_plugin_arguments(args) if adapters.parallelism.capabilities.name in FSDP else None,
        deepspeed=(lambda: dict(parallelism.configuration(model))) if is_requested("deepspeed", args) else None,
        configured=bool(getattr(config, "use_configured_state", False)),
    )


def processes_of(adapters: Adapters) -> Processes:
    """Return the processes of a run, as accelerate sees them."""
    process, collectives = launched(), adapters.collectives
    return Processes(
        adapters.device.name,
        collectives.rank,
        collectives.world_size,
        process.local_rank if collectives.world_size > 1 else 0,
        process.local_world_size or collectives.world_size,
    )


def _ddp_options(args: TrainingArguments, model: Any) -> dict[str, Any]:
    """Return transformers' options of a model wrapped for data parallelism."""
    given = {
        "find_unused_parameters": args.ddp_find_unused_parameters,
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }
    if given["find_unused_parameters"] is None:
        recomputes = getattr(model, "is_activation_checkpointing", False) or args.activation_checkpointing
        given["find_unused_parameters"] = not (hasattr(model, "is_activation_checkpointing") and recomputes)
    return {name: value for name, value in given.items() if value is not None}


def mixed_precision(adapters: Adapters) -> str:
    """Return the run's mixed precision, as accelerate names it: fp16, bf16, fp8 or no."""
    return adapters.precision.name if adapters.precision.name in MIXED else "no"


def under_precision(adapters: Adapters) -> AbstractContextManager[Any]:
    """Return a context in which a model computes in the run's precision, unless the engine applies it itself."""
    dtype = None if adapters.parallelism.capabilities.owns_update else MIXED.get(adapters.precision.name)
    return nullcontext() if dtype is None else torch.autocast(torch.device(adapters.device.name).type, dtype)


def loss_scale(adapters: Adapters) -> RunScaler | None:
    """Return the loss scale of a run, with the methods of torch's `GradScaler`; None without one."""
    scales = adapters.precision.name == "fp16" and not adapters.parallelism.capabilities.owns_update
    return RunScaler(adapters.precision) if scales else None


def step_scaled(adapters: Adapters, optimizer: Any) -> None:
    """Let an optimizer's own `step`, which user code may call, step through the loss scale, if there is one."""
    precision = getattr(adapters.precision, "precision", adapters.precision)
    if optimizer is not None and isinstance(precision, Fp16Precision):
        precision.step_through(optimizer)


def share_run(args: TrainingArguments, adapters: Adapters, model: Any, then: Callable[[], None]) -> None:
    """Let accelerate's functions find the run: now if accelerate is imported, else as soon as it is.

    then: a method that is called afterwards, if its object still exists.
    Raises ConfigurationError if `use_configured_state` asks for a state that does not exist or differs from the run.
    """
    options, reference = options_of(args, adapters, model), WeakMethod(then)

    def share() -> None:
        share_state(options)
        if (call := reference()) is not None:
            call()

    if options.configured:
        share()
    elif options.processes.connected and options.processes.of_torch:
        when_imported("run", share)


def make(args: TrainingArguments, adapters: Adapters, model: Any, build: BuildArguments | None = None) -> Any:
    """Return an `accelerate.Accelerator` that shares the run's process group, device and loss scale.

    build: an overridden `_build_accelerator_args`.
    Raises ConfigurationError if it changes what the run decides.
    """
    options = options_of(args, adapters, model)
    made = make_accelerator(options) if build is None else make_accelerator(options, _adjusted_by(build))
    _use_loss_scale(made, adapters)
    return made


def _use_loss_scale(accelerator: Any, adapters: Adapters) -> None:
    """Let an Accelerator use the run's loss scale; on a CPU it would ignore fp16."""
    scale = loss_scale(adapters)
    if scale is not None:
        accelerator.scaler, accelerator.native_amp = scale, True


def usual_arguments(args: TrainingArguments, adapters: Adapters, model: Any) -> dict[str, Any]:
    """Return the keywords with which an Accelerator of the run is made."""
    return accelerator_arguments(options_of(args, adapters, model))


OWNED = {
    "mixed_precision": "set bf16, fp16, fp8 or tf32, or pass precision=... to the Trainer",
    "deepspeed_plugin": "set deepspeed",
    "fsdp_plugin": "set fsdp and fsdp_config",
    "gradient_accumulation_plugin": "set gradient_accumulation_steps, or accelerator_config's "
    "gradient_accumulation_kwargs",
    "kwargs_handlers": "set ddp_find_unused_parameters and the other arguments ddp_..., or pass parallelism=...; for a "
    "recipe of fp8, set fp8 to it",
    "dynamo_plugin": "set torch_compile, torch_compile_backend and torch_compile_mode",
    "dataloader_config": "set accelerator_config",
}
"""The keywords of an Accelerator that the run decides, and how."""


def _adjusted_by(build: BuildArguments) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what calls an overridden `_build_accelerator_args` with the keywords that transformers passes to it."""
    passed = ("dataloader_config", "fsdp_plugin", "gradient_accumulation_plugin")

    def adjusted(usual: dict[str, Any]) -> dict[str, Any]:
        built = build(**{name: usual[name] for name in passed})
        problems = [
            f"_build_accelerator_args returns {name}={built[name]!r}, which the run would not follow; {instead}."
            for name, instead in OWNED.items()
            if name in built and _plain(built[name]) != _plain(usual.get(name))
        ]
        if problems:
            raise ConfigurationError(problems)
        return {**built, **{name: usual[name] for name in OWNED if name not in built}}

    return adjusted


def _plain(value: Any) -> Any:
    """Return plain data of a keyword, for comparisons."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [(type(each).__name__, _plain(each)) for each in value]
    return vars(value) if hasattr(value, "__dict__") and not isinstance(value, type) else value


def is_accelerator(candidate: object) -> bool:
    """Return whether an object is accelerate's Accelerator; accelerate is not imported for that."""
    accelerate = sys.modules.get("accelerate")
    return accelerate is not None and isinstance(candidate, accelerate.Accelerator)


def overridden(accelerator: Any) -> set[str]:
    """Return the methods that the class of an Accelerator overrides, or that were assigned to it."""
    usual: Any = next(kind for kind in type(accelerator).__mro__ if kind.__module__ == "accelerate.accelerator")
    own = {
        name for name in dir(type(accelerator)) if getattr(type(accelerator), name) is not getattr(usual, name, None)
    }
    return {*own, *vars(accelerator)}


def refuse_other_accelerator(accelerator: Any, args: TrainingArguments, adapters: Adapters) -> None:
    """Raise ConfigurationError if an Accelerator differs from the run; otherwise let it use the run's loss scale."""
    options = options_of(args, adapters, None)
    found = differences(options.processes)
    if accelerator.mixed_precision != options.mixed_precision:
        found.append(f"its mixed precision is {accelerator.mixed_precision!r}, the run's {options.mixed_precision!r}")
    elif has_other_recipe(accelerator, options):
        found.append("its recipe for fp8 is another one than the run's")
    if found:
        raise ConfigurationError(
            f"The Accelerator that you assigned to trainer.accelerator differs from the run: {'; '.join(found)}. "
            "Make it with the settings of the TrainingArguments; for fp8, set fp8 there, which also takes its recipe."
        )
    _use_loss_scale(accelerator, adapters)


def shown(signals: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return signals of a run that accelerate's `GradientState` shows, once there is one, with the same values.

    It then also shows which of hexloop's loaders are being read.
    """
    if not is_shown():
        return signals
    announce_passes()
    return signals if isinstance(signals, SharedSignals) else SharedSignals(signals)


def gathered_weights(adapters: Adapters, model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a sharded model by name, on the first process; empty on the others. Collective."""
    sharding = cast("Sharding[Any, Any, Any]", adapters.parallelism)
    inner, layout = sharding.unwrap(model), sharding.layout
    found = {part.name: read_tensor(part) for part in ModelState(inner, layout, writers=1).export() if part.length}
    state = layout.state(inner)
    whole = {id(state[name]): tensor for name, tensor in found.items()}
    return {name: whole[id(each)] for name, each in state.items() if id(each) in whole}


def gathered_objects(adapters: Adapters, objects: Any) -> Any:
    """Return the elements of the lists of all processes."""
    return accelerate_adapter.gathered_objects(processes_of(adapters), objects)


def without_repeated_rows(gathered: Any, are_objects: bool) -> Any:
    """Return gathered rows without those that a loader of accelerate's repeated; hexloop's own loaders repeat none."""
    return accelerate_adapter.without_repeated_rows(gathered, are_objects, repeats_none=PreparedLoader)
