"""A real `accelerate.Accelerator`, made from a run, and what it does with the objects of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import field, frozen
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from hexloop.adapters.accelerator.accelerate.signals import is_shown
from hexloop.adapters.accelerator.accelerate.state import (
    Processes,
    described_by_environment,
    refuse_other_state,
    shared_state,
)


@frozen
class AcceleratorOptions:
    """What an Accelerator of a run is made from, as plain values.

    mixed_precision: "no", "bf16", "fp16" or "fp8". recipe: returns the name and the keywords of accelerate's recipe for
    fp8; None without fp8. loaders: how it shares the batches of loaders that it prepares, by the
    names of accelerate's `DataLoaderConfiguration`. accumulation: further keywords of its `GradientAccumulationPlugin`.
    ddp: options of the models that it wraps. compile_backend, compile_mode: of the models that it prepares.
    fsdp: keywords of accelerate's FSDP plugin. deepspeed: returns DeepSpeed's configuration. None without that engine.
    configured: use the state of accelerate that exists, and raise ConfigurationError if it differs from the run.
    """

    processes: Processes
    mixed_precision: str = "no"
    recipe: Callable[[], tuple[str, Mapping[str, Any]]] | None = None
    loaders: Mapping[str, Any] = field(factory=dict)
    accumulation: Mapping[str, Any] = field(factory=dict)
    ddp: Mapping[str, Any] = field(factory=dict)
    compile_backend: str = "no"
    compile_mode: str | None = None
    fsdp: Mapping[str, Any] | None = None
    deepspeed: Callable[[], Mapping[str, Any]] | None = None
    configured: bool = False


def accelerator_arguments(options: AcceleratorOptions) -> dict[str, Any]:
    """Return the keywords of `accelerate.Accelerator`.

    It accumulates over one micro-batch, as transformers' does: the run itself accumulates.
    """
    from accelerate import utils

    loaders = utils.DataLoaderConfiguration(
        **{name: value for name, value in options.loaders.items() if name != "data_seed"}
    )
    loaders.data_seed = options.loaders.get("data_seed")
    made: dict[str, Any] = {
        "mixed_precision": options.mixed_precision,
        "deepspeed_plugin": None,
        "dataloader_config": loaders,
        "fsdp_plugin": _fsdp_plugin(options),
        "gradient_accumulation_plugin": _accumulation_plugin(options),
        "kwargs_handlers": [utils.DistributedDataParallelKwargs(**options.ddp), *_recipes(options)],
        "dynamo_plugin": _dynamo_plugin(options),
    }
    if options.deepspeed is not None:
        made["deepspeed_plugin"] = utils.DeepSpeedPlugin(hf_ds_config=dict(options.deepspeed()))
    return made


def _recipes(options: AcceleratorOptions) -> list[Any]:
    from accelerate import utils

    if options.recipe is None:
        return []
    name, keywords = options.recipe()
    return [getattr(utils, name)(**keywords)]


def has_other_recipe(accelerator: Any, options: AcceleratorOptions) -> bool:
    """Return whether an Accelerator trains in fp8 otherwise than the run, how it pads and gathers aside."""
    for ours in _recipes(options):
        kept = "ao_recipe_handler" if type(ours).__name__ == "AORecipeKwargs" else "te_recipe_handler"
        theirs = getattr(accelerator, kept, None)
        if theirs is None:
            return True
        if kept == "te_recipe_handler":
            return bool(vars(theirs) != vars(ours))
        aside = ("emulate", "pad_inner_dim", "enable_fsdp_float8_all_gather")
        config = dataclasses.replace(theirs.config, **{name: getattr(ours.config, name) for name in aside})
        return config != ours.config or theirs.module_filter_func is not ours.module_filter_func
    return False


def _accumulation_plugin(options: AcceleratorOptions) -> Any:
    from accelerate.utils import GradientAccumulationPlugin

    return GradientAccumulationPlugin(**{**options.accumulation, "num_steps": 1})


def _fsdp_plugin(options: AcceleratorOptions) -> Any:
    from accelerate.utils import FullyShardedDataParallelPlugin

    if options.fsdp is None:
        return None
    given = dict(options.fsdp)
    if torch.device(options.processes.device).type == "cpu" and "sync_module_states" in given:
        given["sync_module_states"] = False  # the plugin would look for a GPU
    if options.recipe is not None:
        given["cpu_ram_efficient_loading"] = False  # which accelerate does not combine with fp8
    return FullyShardedDataParallelPlugin(**given)


def _dynamo_plugin(options: AcceleratorOptions) -> Any:
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin

    backend = options.compile_backend
    known = backend.upper() in [each.value for each in DynamoBackend]  # torch knows others, which plugins register
    return TorchDynamoPlugin(backend=backend if known else "no", mode=options.compile_mode)


def make_accelerator(
    options: AcceleratorOptions, adjusted: Callable[[dict[str, Any]], dict[str, Any]] = lambda keywords: keywords
) -> Any:
    """Return an Accelerator over the run's process group and device.

    adjusted: returns the keywords of the Accelerator, given the usual ones.
    Raises ConfigurationError if torch.distributed does not connect the processes, or `configured` cannot be honored.
    """
    from accelerate import Accelerator

    share_state(options)
    with _environment(options):
        made = Accelerator(**adjusted(accelerator_arguments(options)))
    if options.deepspeed is not None:
        made.deepspeed_config = made.state.deepspeed_plugin.deepspeed_config  # set where accelerate makes the engine
    return made


def share_state(options: AcceleratorOptions) -> None:
    """Make accelerate's shared states from a run, so that accelerate's functions work before an Accelerator is made.

    The state that DeepSpeed's configuration is part of is made with the Accelerator.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType

    _share_partial_state(options)
    GradientState(_accumulation_plugin(options))
    if options.deepspeed is not None:
        return
    with _environment(options):
        plugin = _fsdp_plugin(options)
        state = AcceleratorState(
            mixed_precision=options.mixed_precision,
            dynamo_plugin=_dynamo_plugin(options),
            fsdp_plugin=plugin,
            _from_accelerator=True,
        )
        if plugin is not None:  # accelerate knows FSDP on GPUs only
            if options.mixed_precision != "no":
                plugin.set_mixed_precision(options.mixed_precision)
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def _environment(options: AcceleratorOptions) -> Any:
    return described_by_environment(
        options.processes,
        ACCELERATE_USE_DEEPSPEED=str(options.deepspeed is not None).lower(),
        ACCELERATE_USE_FSDP=str(options.fsdp is not None).lower(),
        ACCELERATE_USE_PARALLELISM_CONFIG="false",
        ACCELERATE_USE_MEGATRON_LM="false",
    )


def _share_partial_state(options: AcceleratorOptions) -> None:
    """Make accelerate's `PartialState`, and discard an `AcceleratorState` of a run with other settings."""
    from accelerate.state import AcceleratorState, PartialState

    if options.configured:
        refuse_other_state(options.processes, options.mixed_precision)
        return
    shared = AcceleratorState._shared_state
    if shared:
        same_engine = _engine_of(shared["distributed_type"].value) == _engine_of_options(options)
        if options.deepspeed is not None or not same_engine:
            AcceleratorState._reset_state(reset_partial_state=True)
        elif shared["_mixed_precision"] != options.mixed_precision:
            AcceleratorState._reset_state()
    if PartialState._shared_state and _engine_of(PartialState().distributed_type.value) == "DEEPSPEED":
        AcceleratorState._reset_state(reset_partial_state=True)
    shared_state(options.processes)


def _engine_of(distributed_type: str) -> str:
    return distributed_type if distributed_type in ("DEEPSPEED", "FSDP", "MEGATRON_LM") else ""


def _engine_of_options(options: AcceleratorOptions) -> str:
    if options.deepspeed is not None:
        return "DEEPSPEED"
    return "FSDP" if options.fsdp is not None else ""


# The objects of a run, and others


def is_preparable(candidate: object) -> bool:
    """Return whether an Accelerator does anything with an object: a model, a loader, an optimizer, a schedule."""
    return isinstance(candidate, nn.Module | DataLoader | torch.optim.Optimizer | LRScheduler)


def whole_weights(accelerator: Any, model: Any, unwrap: bool) -> Any:
    """Return the weights of a model by name; those of a sharded one on the first process. Collective if it is sharded.

    unwrap: without the wrappers of a model that is not sharded.
    """
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

    if not isinstance(model, FullyShardedDataParallel):
        return accelerator.get_state_dict(model, unwrap)
    on_cpu = accelerator.device.type == "cpu"  # torch offloads from GPUs only
    configuration = FullStateDictConfig(offload_to_cpu=not on_cpu, rank0_only=not on_cpu)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, configuration):
        return model.state_dict()


def unwrapped_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside one that accelerate prepared."""
    from accelerate.optimizer import AcceleratedOptimizer

    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def gathered_objects(processes: Processes, objects: Any) -> Any:
    """Return the elements of the lists of all processes.

    Raises ConfigurationError if torch.distributed does not connect the processes.
    """
    from accelerate.utils import gather_object

    shared_state(processes)
    return gather_object(objects)


def without_repeated_rows(gathered: Any, are_objects: bool, repeats_none: type[Any]) -> Any:
    """Return gathered rows without those that a prepared loader repeated to fill the last batch of all processes.

    are_objects: the rows are a list of objects, not nested tensors. repeats_none: the class of loaders without such
    rows.
    """
    if not is_shown():
        return gathered
    from accelerate.state import GradientState
    from accelerate.utils import recursively_apply

    state = GradientState()
    whole = isinstance(state.active_dataloader, repeats_none)
    if whole or not state.end_of_dataloader or state.remainder <= 0:
        return gathered
    kept = slice(state.remainder)
    try:
        return gathered[kept] if are_objects else recursively_apply(lambda tensor: tensor[kept], gathered)
    except (IndexError, KeyError, TypeError):  # values without rows, which accelerate keeps as they are
        return gathered


@contextmanager
def with_objects_of_run(accelerator: Any, models: Sequence[Any], optimizer: Any, scheduler: Any) -> Iterator[None]:
    """In this context, the accelerator also saves and loads the objects of the run, before those that it prepared."""
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.utils import extract_model_from_parallel

    def unwrapped(prepared: Any) -> Any:
        if isinstance(prepared, torch.nn.Module):
            return extract_model_from_parallel(prepared)
        return prepared.scheduler if isinstance(prepared, AcceleratedScheduler) else unwrapped_optimizer(prepared)

    names = ("_models", "_optimizers", "_schedulers")
    before = {name: getattr(accelerator, name) for name in names}
    optimizers = [] if optimizer is None else [AcceleratedOptimizer(optimizer, device_placement=False)]
    schedulers = [] if scheduler is None else [scheduler]
    for name, own in zip(names, (list(models), optimizers, schedulers), strict=True):
        others = [each for each in before[name] if not any(unwrapped(each) is unwrapped(one) for one in own)]
        setattr(accelerator, name, own + others)
    try:
        yield
    finally:
        for name, objects in before.items():
            setattr(accelerator, name, objects)
