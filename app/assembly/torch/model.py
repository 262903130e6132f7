"""The model of a run, with the patches that last as long as the run, its optimizer and its learning-rate schedule."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from attrs import evolve
from torch.optim.lr_scheduler import LambdaLR

from hexloop.adapters.scheduler.torch.run_schedules import LambdaScheduler, MetricScheduler, follower_of, lambda_of
from hexloop.adapters.scheduler.torch.user_scheduler import TorchScheduler
from hexloop.adapters.trainable.torch import optimizers
from hexloop.adapters.trainable.torch.decay_groups import decayed_names
from hexloop.adapters.trainable.torch.forward import (
    align_special_tokens,
    default_label_names,
    returns_loss_by_default,
    takes_any_keyword,
)
from hexloop.adapters.trainable.torch.forward_hooks import OverflowWatch, PastOutputs, add_embedding_noise
from hexloop.adapters.trainable.torch.group_rules import frozen_by
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.adapters.trainable.torch.optimizers import build_optimizer
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import DebugOption
from hexloop.app.arguments.parameter_groups import parameter_rules
from hexloop.app.assembly.framework import Observer
from hexloop.app.assembly.learner import RunLearner
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.losses import refuse_chunked_loss
from hexloop.app.devices import runtime_report
from hexloop.app.engines import engine_for, find_plugin
from hexloop.app.joining import join
from hexloop.app.rules import rules_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric, best_metric_named
from hexloop.domain.events import EpochBegan, EpochEnded, Evaluated
from hexloop.domain.loop import StandardLearner
from hexloop.domain.schedules import ADAPTIVE, schedule_named, shape_named
from hexloop.domain.wording import RefusalError, did_you_mean, problem
from hexloop.ports.device import Device
from hexloop.ports.learner import Scheduler

__all__ = [
    "add_embedding_noise",
    "build_optimizer",
    "decayed_names",
    "default_label_names",
    "returns_loss_by_default",
    "takes_any_keyword",
    "unwrapped",
]
"""Adapters' names that the rest of the app gets from here."""


def compiled(model: Any, args: TrainingArguments) -> Any:
    """Return a model that is compiled when it is first called, if the arguments require it.

    With `compile_buckets` each shape is compiled by itself, for the sizes that it has. Raises ConfigurationError if
    torch does not know the back end or the mode.
    """
    if not args.torch_compile:
        return model
    dynamic = None if args.compile_buckets is None else False
    backend, mode = args.torch_compile_backend or "inductor", args.torch_compile_mode
    try:
        return torch.compile(model, backend=backend, mode=mode, dynamic=dynamic)
    except RuntimeError as error:
        backends, modes = torch.compiler.list_backends(), torch._inductor.list_mode_options()
        if backend not in torch.compiler.list_backends(exclude_tags=()):
            raise _unknown({"torch_compile_backend": backend}, "backend", backends) from error
        if backend == "inductor" and mode is not None and mode not in modes:
            raise _unknown({"torch_compile_mode": mode}, "mode", modes) from error
        raise


def _unknown(value: dict[str, str], kind: str, known: Collection[str]) -> ConfigurationError:
    """Return the error for a value of torch.compile that torch does not know."""
    (name,) = value.values()
    remedy = did_you_mean(name, known, f"choose one of {', '.join(known)}", spell=repr)
    return ConfigurationError(problem(value, RefusalError(f"torch.compile has no such {kind} here", remedy)))


def place_model(model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
    """Apply the memory options of the arguments to a model, move it to `device` if `moves`, and return it.

    Raises ConfigurationError if the model does not support activation checkpointing and it is required.
    """
    if args.activation_checkpointing:
        _checkpoint_activations(unwrapped(model), args.activation_checkpointing_kwargs)
    if moves:
        shared = _shared_parameters(model)
        _move(model, device)
        for first, *others in shared:  # each may have become a parameter of its own
            for module, name in others:
                setattr(module, name, first[0]._parameters[first[1]])
    return model


def _move(model: Any, device: Device) -> None:
    """Move a model. Its parameters stay the same objects, which an optimizer of the user's may hold.

    torch replaces parameters whose memory is of another kind than the device's, unless it is told to swap what is in
    them. It cannot swap one that something else refers to, such as a graph; then all that are left are replaced.
    """
    kind, first = device.name.partition(":")[0], next(iter(model.parameters()), None)
    swaps, compatible = torch.__future__, torch._has_compatible_shallow_copy_type
    if first is None or first.device.type == kind or compatible(first, torch.empty(0, device=device.name)):
        model.to(device.name)
        return
    before = swaps.get_swap_module_params_on_conversion()
    swaps.set_swap_module_params_on_conversion(True)
    try:
        model.to(device.name)
    except RuntimeError:
        swaps.set_swap_module_params_on_conversion(before)
        model.to(device.name)
    finally:
        swaps.set_swap_module_params_on_conversion(before)


def _shared_parameters(model: Any) -> list[list[tuple[Any, str]]]:
    """Return the modules and names under which a model has the same parameter, for each that has several."""
    places: dict[int, list[tuple[Any, str]]] = {}
    for module in unwrapped(model).modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]


@contextmanager
def patched(model: Any, args: TrainingArguments, processing_class: Any) -> Iterator[list[Observer]]:
    """Align special tokens, and apply the patches that the arguments require for the length of the block.

    Patches are liger kernels (these stay), parameters that `param_groups` freezes, noise on embeddings, a watch for
    overflows, and past outputs.
    Yields the event handlers of the patches. Raises ConfigurationError if the model does not support a patch, or a
    package is missing.
    """
    inner = unwrapped(model)
    align_special_tokens(inner, processing_class)
    observers: list[Observer] = []
    with ExitStack() as patches:
        apply_liger_kernels(inner, args)
        refuse_chunked_loss(inner, args)
        patches.callback(_freeze_by_rules(inner, args))
        if args.neftune_noise_alpha is not None:
            patches.callback(add_embedding_noise(inner, args.neftune_noise_alpha))
        if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
            patches.callback(OverflowWatch().watch(inner))
        if DebugOption.TPU_METRICS_DEBUG in args.debug and args.should_log:
            observers.append(dict.fromkeys((EpochEnded, Evaluated), lambda _: _print_report(args.device_name)))
        if args.past_index >= 0:
            past = PastOutputs(args.past_index, training=True)
            patches.callback(past.attach(model))
            observers.append({EpochBegan: lambda _: past.forget()})
        yield observers


def _freeze_by_rules(model: Any, args: TrainingArguments) -> Callable[[], None]:
    """Freeze the parameters that `param_groups` says; return what makes them trainable again."""
    frozen = (
        [each for each in frozen_by(parameter_rules(args), model) if each.requires_grad] if args.param_groups else []
    )
    for parameter in frozen:
        parameter.requires_grad_(False)

    def thaw() -> None:
        for parameter in frozen:
            parameter.requires_grad_(True)

    return thaw


def _print_report(device: str) -> None:
    """Print what the device's runtime counts, as transformers does."""
    if (report := runtime_report(device)) is not None:
        print(report)


def with_past(index: int, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a prediction step that passes the model's past outputs from each batch to the next."""
    past = PastOutputs(index, training=False)

    def predict(model: Any, *values: Any, **named: Any) -> Any:
        remove = past.attach(model)
        try:
            return step(model, *values, **named)
        finally:
            remove()

    return predict


_WITH_LIGER_KERNELS = WeakSet[Any]()


def apply_liger_kernels(model: Any, args: TrainingArguments) -> None:
    """With `use_liger_kernel`, replace the layers of a transformers model by those of liger-kernel, once and for good.

    `liger_kernel_config` says which layers, by the package's own names. Raises ConfigurationError if the package is not
    installed, or the model is not one of transformers'.
    """
    if not args.use_liger_kernel or model in _WITH_LIGER_KERNELS:
        return
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # what a PEFT wrapper wraps
    problem = None
    if importlib.util.find_spec("liger_kernel") is None:
        problem = "needs the package liger-kernel, which is not installed; run `pip install liger-kernel`"
    elif getattr(getattr(inner, "config", None), "model_type", None) is None:
        problem = f"needs a model of transformers, but the model is a {type(inner).__name__}; remove the option"
    if problem is not None:
        raise ConfigurationError(f"use_liger_kernel=True {problem}.")
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=inner, **(args.liger_kernel_config or {}))
    _WITH_LIGER_KERNELS.add(model)


def _checkpoint_activations(model: Any, options: Any) -> None:
    """Enable activation checkpointing, by the method's current or its earlier name.

    `every_n_layers` and `offload` are the method's own options; the others are those of torch's `checkpoint`.
    """
    torch_options = dict(options or {})
    own = {name: torch_options.pop(name) for name in ("every_n_layers", "offload") if name in torch_options}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=torch_options or None, **own)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=torch_options or None, **own)
    else:
        raise ConfigurationError(
            f"activation_checkpointing=True needs a model with a method activation_checkpointing_enable, which "
            f"{type(model).__name__} does not have; add the method, or set activation_checkpointing=False."
        )


def zero3_init(args: TrainingArguments) -> AbstractContextManager[None]:
    """Partition the parameters of every module over the processes as it is created, if ZeRO 3 is chosen.

    Every process draws the same weights as without it, those of one module at a time. Create transformers' models by
    `from_pretrained` or `from_config` in this context, because their own classes initialize weights once the whole
    model exists. If ZeRO 3 is not chosen, nothing happens. Collective.

    Args:
        args: the arguments of the run.

    Raises:
        ConfigurationError: for an invalid DeepSpeed configuration.
    """
    return engine_for(args).sharded_init(args, partial(join, args))


# Optimizer


def choose_optimizer(args: TrainingArguments, model: Any = None) -> tuple[Any, dict[str, Any]]:
    """Return the optimizer class that the arguments name, or a factory, and its keyword arguments.

    model: whose parameters the optimizer will update, if it is known.
    """
    return choose_named_optimizer(args, model, str(getattr(args.optim, "value", args.optim)), args.optim_args)


def choose_named_optimizer(
    args: TrainingArguments, model: Any, name: str, further: str | None
) -> tuple[Any, dict[str, Any]]:
    """Return the class of the optimizer called `name`, or a factory, and its keyword arguments from the arguments.

    further: as `optim_args`.
    """
    installed = partial(find_plugin, "optimizers")
    row = optimizers.row_named(name, installed)
    if row.joint and args.steps_in_backward:
        raise ConfigurationError(f"optim={name!r} cannot be used with optim_layerwise=True: {row.joint}; leave it out.")
    if row.layer_wise and not args.steps_in_backward:  # of an installed package
        raise ConfigurationError(
            f"optim={name!r} updates each parameter in the backward pass; set optim_layerwise=True as well."
        )
    return optimizers.choose_optimizer(
        name,
        args.learning_rate,
        (args.adam_beta1, args.adam_beta2),
        args.adam_epsilon,
        further,
        args.device.type,
        installed=installed,
        weight_decay=args.weight_decay,
        warmup_steps=args.warmup_steps,
        adam_reaches_all=rules_of(args).adam_reaches_all,
        model=model,
        target_modules=args.optim_target_modules,
    )


# Schedule


def make_lr_scheduler(args: TrainingArguments, optimizer: Any, total_steps: int) -> Any:
    """Return the schedule that the arguments name, applied to the optimizer's own rates, as a scheduler of torch.

    It is of the class that transformers uses: a LambdaLR, ReduceLROnPlateau or GreedyLR. Raises ConfigurationError if
    the schedule's options are invalid, or the optimizer has no learning rate or is not a torch optimizer.
    """
    if any(group["lr"] is None for group in optimizer.param_groups):
        raise ConfigurationError(
            f"The optimizer ({type(optimizer).__name__}) has no learning rate that the schedule could scale; set "
            "one, or pass optimizers=(optimizer, get_adafactor_schedule(optimizer))."
        )
    if any(kind.__name__ == "LayerWiseDummyOptimizer" for kind in type(optimizer).__mro__):
        raise ConfigurationError(
            "The optimizer is transformers' LayerWiseDummyOptimizer, which updates the weights during the backward "
            "pass. hexloop does not allow that yet: accumulation and clipping would have no effect, and checkpoints "
            "would lack its state. Choose optim='adafactor' to save memory."
        )
    optimizers.settle_warmup(optimizer, total_steps)
    name, options = schedule_named(args)
    if name in ADAPTIVE:
        return follower_of(name, options, optimizer)
    return lambda_of(shape_named(args, total_steps, _default_rate(optimizer)), optimizer)


def stretch_schedule(scheduler: Scheduler, args: TrainingArguments, total_steps: int, optimizer: Any) -> None:
    """Let the schedule of the arguments run over another number of steps. One that follows a metric stays as it is."""
    if isinstance(scheduler, LambdaScheduler):
        scheduler.follow(shape_named(args, total_steps, _default_rate(optimizer)))


def _default_rate(optimizer: Any) -> float | None:
    rate = getattr(optimizer, "defaults", {}).get("lr")
    return None if rate is None else float(rate)


def scheduler_adapter(parts: TrainerParts, learner: RunLearner) -> Scheduler:
    """Return the Scheduler adapter for `trainer.lr_scheduler`: that of the arguments, or the user's.

    A schedule of the user's is stepped before the gradients are cleared, as in transformers: it may read them.
    """
    args, lr_scheduler = parts.args, parts.lr_scheduler
    if lr_scheduler is not parts.standard_scheduler:
        optimizers.refuse_ratio(parts.optimizer)
        metric = BestMetric(args.metric_for_best_model or "loss", bool(args.greater_is_better))
        adapter = TorchScheduler(lr_scheduler, parts.optimizer, metric)
        if isinstance(learner.standard, StandardLearner):
            earlier = learner.standard.before_clearing

            def before_clearing(taken: bool) -> None:
                if earlier is not None:
                    earlier(taken)
                adapter.step_with_gradients(taken)

            learner.standard.before_clearing = adapter.step_with_gradients if earlier is None else before_clearing
        return adapter
    if isinstance(lr_scheduler, LambdaLR):
        return LambdaScheduler(lr_scheduler)
    return MetricScheduler(lr_scheduler, evolve(best_metric_named(args), required=True))
