"""What a run attaches to its model, and takes off again at its end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from hexloop.adapters.scheduler.torch import TorchScheduler
from hexloop.adapters.trainable.torch.forward_hooks import OverflowWatch, PastOutputs, add_embedding_noise
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import DebugOption
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.events import AnyEvent, EpochBegan
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.schedules import ADAPTIVE, Adaptive, Shape, build_adaptive, build_shape
from hexloop.domain.schedules.scheduler import MEMORY, AdaptiveRates, ScheduledRates
from hexloop.ports.device import Device
from hexloop.ports.scheduler import Scheduler

Observer: TypeAlias = Mapping[type[AnyEvent], Callable[[Any], None]]
"""What is called at events of these types."""

PredictionStep: TypeAlias = Callable[..., Any]
"""From a model and a batch to the loss, the logits and the labels."""


@contextmanager
def attached(args: TrainingArguments, model: Any) -> Iterator[list[Observer]]:
    """Kernels, noise on embeddings, a watch for overflows, a memory: each where the arguments ask for it.

    Inside, those that want to be told of the run's events.

    Raises ConfigurationError where the model has no place for one, or a package is missing.
    """
    observers: list[Observer] = []
    with ExitStack() as attachments:
        if args.use_liger_kernel:
            apply_liger_kernels(model, args.liger_kernel_config)
        if args.neftune_noise_alpha is not None:
            attachments.callback(add_embedding_noise(model, args.neftune_noise_alpha))
        if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
            attachments.callback(OverflowWatch().watch(model))
        if args.past_index >= 0:
            past = PastOutputs(args.past_index, training=True)
            attachments.callback(past.attach(model))
            observers.append({EpochBegan: lambda _: past.forget()})
        yield observers


def with_past(index: int, step: PredictionStep) -> PredictionStep:
    """A prediction step that hands the model's memory from each batch to the next."""
    past = PastOutputs(index, training=False)

    def predict(model: Any, *values: Any, **named: Any) -> Any:
        remove = past.attach(model)
        try:
            return step(model, *values, **named)
        finally:
            remove()

    return predict


def apply_liger_kernels(model: Any, choice: dict[str, bool] | None) -> None:
    """Let the layers of a transformers model be computed by the liger-kernel package's; they stay so.

    choice: which layers, by the package's own names. Raises ConfigurationError where the package is not installed, or
    the model is none of transformers'.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # what a PEFT wrapper wraps
    problem = None
    if importlib.util.find_spec("liger_kernel") is None:
        problem = "the package liger-kernel is not installed; pip install liger-kernel"
    elif getattr(getattr(inner, "config", None), "model_type", None) is None:
        problem = f"{type(inner).__name__} is no model of transformers, whose layers alone it knows; leave it out"
    if problem is not None:
        raise ConfigurationError([f"You chose use_liger_kernel=True, but {problem}."])
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=inner, **(choice or {}))


def place_model(model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
    """The model, moved to `device` where it `moves`.

    Raises ConfigurationError where activation checkpointing is asked of a model that cannot do it.
    """
    if args.activation_checkpointing:
        _checkpoint_activations(model, args.activation_checkpointing_kwargs)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.use_cache = args.use_cache
    if moves:
        model.to(device.name)
    return model


def _checkpoint_activations(model: Any, options: Any) -> None:
    """Let the model recompute activations, by the method's present name or by its former one.

    `every_n_layers` and `offload` are the method's own options; the others are those of torch's `checkpoint`.
    """
    further = dict(options or {})
    own = {name: further.pop(name) for name in ("every_n_layers", "offload") if name in further}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=further or None, **own)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=further or None, **own)
    else:
        raise ConfigurationError(
            [
                f"You chose activation_checkpointing=True, but {type(model).__name__} has no method "
                "activation_checkpointing_enable; give it one, or set activation_checkpointing=False."
            ]
        )


class LearningRates:
    """What `trainer.lr_scheduler` is unless the user supplies one: hexloop's schedule under a torch scheduler's names.

    The loop moves it; a script that drives the optimizer itself calls `step()` after each update.
    """

    def __init__(self, scheduler: ScheduledRates | AdaptiveRates, optimizer: Any) -> None:
        self.scheduler = scheduler
        self.optimizer = optimizer
        self.base_lrs = list(scheduler.base_rates)
        scheduler.start(0)

    @property
    def last_epoch(self) -> int:
        """The updates taken, by the name that torch has for them."""
        return self.scheduler.updates

    def get_last_lr(self) -> list[float]:
        """The rates in force, one for each parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, metrics: float | None = None) -> None:
        """Put the rates after one more update in force."""
        self.scheduler.advance(self.scheduler.updates + 1)

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands, under torch's names; with what it remembers of metrics, where it follows one."""
        memory = {part.name: json_value(part) for part in self.scheduler.export()}
        return {
            "last_epoch": self.last_epoch,
            "base_lrs": list(self.base_lrs),
            "_last_lr": self.get_last_lr(),
            **memory,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, and put its rates in force."""
        self.base_lrs = list(state_dict["base_lrs"])
        self.scheduler.base_rates = tuple(self.base_lrs)
        self.scheduler.load([json_part(name, state_dict[name]) for name in state_dict.keys() & {MEMORY}])
        self.scheduler.start(state_dict["last_epoch"])


def best_metric(args: TrainingArguments) -> BestMetric:
    """The metric that decides which evaluation is the best."""
    return BestMetric(args.metric_for_best_model or "", bool(args.greater_is_better))


def make_schedule(args: TrainingArguments, total_steps: int, optimizer: Any = None) -> Adaptive[Any] | Shape:
    """The schedule that the arguments name. Raises ConfigurationError where its options do not fit.

    Rates among the options are measured in the optimizer's default rate; where there is none, in the arguments'.
    """
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    options: dict[str, Any] = dict(args.lr_scheduler_kwargs) if isinstance(args.lr_scheduler_kwargs, dict) else {}
    if name in ADAPTIVE:
        return build_adaptive(name, options)
    return build_shape(
        name,
        base_rate=_default_rate(optimizer, args.learning_rate),
        warmup_steps=args.get_warmup_steps(total_steps),
        total_steps=total_steps,
        options=options,
    )


def make_learning_rates(args: TrainingArguments, optimizer: Any, total_steps: int) -> LearningRates:
    """The rates of the schedule that the arguments name, over the optimizer's own.

    Raises ConfigurationError where the schedule's options do not fit, or the optimizer has no rate to schedule.
    """
    if any(group["lr"] is None for group in optimizer.param_groups):
        raise ConfigurationError(
            [
                f"You chose an optimizer ({type(optimizer).__name__}) without a learning rate, but the schedule of the "
                "arguments scales one; set it, or pass optimizers=(optimizer, get_adafactor_schedule(optimizer))."
            ]
        )
    base_rates = tuple(float(group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups)

    def set_rates(rates: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    schedule: Any = make_schedule(args, total_steps, optimizer)
    scheduler: ScheduledRates | AdaptiveRates
    if args.lr_scheduler_type in ADAPTIVE:
        scheduler = AdaptiveRates(schedule, best_metric(args), base_rates, set_rates)
    else:
        scheduler = ScheduledRates(schedule, base_rates, set_rates)
    return LearningRates(scheduler, optimizer)


def as_port(lr_scheduler: Any, optimizer: Any, args: TrainingArguments) -> Scheduler:
    """Whoever answers the Scheduler port for `trainer.lr_scheduler`."""
    if isinstance(lr_scheduler, LearningRates):
        return lr_scheduler.scheduler
    metric = BestMetric(args.metric_for_best_model or "loss", bool(args.greater_is_better))
    return TorchScheduler(lr_scheduler, optimizer, metric)


def _default_rate(optimizer: Any, otherwise: float) -> float:
    rate = getattr(optimizer, "defaults", {}).get("lr")
    return otherwise if rate is None else float(rate)
