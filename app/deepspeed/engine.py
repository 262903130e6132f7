"""Training with DeepSpeed: its engine, its learner, its schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.deepspeed.configuration import DeepSpeedConfiguration, deepspeed_configuration
from hexloop.app.deepspeed.rules import Length
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.parallelism import Parallelism
from hexloop.ports.trainable import Trainable

if TYPE_CHECKING:
    from hexloop.adapters.learner.deepspeed import DeepSpeedLearner
    from hexloop.app.trainer import Trainer

Tell = Callable[[], None]


def deepspeed_parallelism(
    args: TrainingArguments, device: Device, configuration: DeepSpeedConfiguration
) -> Parallelism[Any]:
    """An engine by this configuration, on this device."""
    import torch

    from hexloop.adapters.parallelism.deepspeed import DeepSpeed

    def for_model(model: Any) -> dict[str, Any]:
        values, problems = configuration.for_model(model)
        if problems:
            raise ConfigurationError(problems)
        return values

    return DeepSpeed(
        torch.device(device.name), args.world_size, configuration.stage, for_model, args.local_process_index
    )


def deepspeed_learner(trainer: Trainer, engine: Any, trainable: Trainable[Any, Any], *tell: Tell) -> DeepSpeedLearner:
    """The learner over an engine; `tell` is called before and after the optimizer's step."""
    from hexloop.adapters.learner.deepspeed import DeepSpeedLearner

    parallelism = trainer.adapters.parallelism
    return DeepSpeedLearner(engine, trainable, parallelism.synchronise, parallelism.backward, *tell)


def refuse_deepspeed(trainer: Trainer, total_steps: int) -> None:
    """Raise ConfigurationError for what of DeepSpeed's configuration does not fit the model, the data or the parts."""
    configuration = deepspeed_configuration(trainer.args)
    if configuration is None:
        return
    problems = [*configuration.problems, *configuration.for_model(trainer.model)[1]]
    problems += configuration.for_length(_length(trainer.args, total_steps))[1]
    if configuration.optimizer is not None and not trainer.makes_optimizer:
        problems.append(
            "You chose an optimizer in DeepSpeed's configuration and gave the Trainer another; leave one of them out."
        )
    if configuration.scheduler is not None and not trainer.makes_scheduler:
        problems.append(
            "You chose a scheduler in DeepSpeed's configuration and gave the Trainer another; leave one of them out."
        )
    if problems:
        raise ConfigurationError(problems)


def deepspeed_schedule(args: TrainingArguments, optimizer: Any, total_steps: int) -> Any:
    """The schedule that DeepSpeed's configuration names, None where it names none.

    Raises ConfigurationError where DeepSpeed has none of that name, or refuses its parameters.
    """
    configuration = deepspeed_configuration(args)
    if configuration is None or configuration.scheduler is None:
        return None
    from deepspeed.runtime import lr_schedules

    section, _ = configuration.for_length(_length(args, total_steps))
    name = section.get("type")
    if not isinstance(name, str) or name not in lr_schedules.VALID_LR_SCHEDULES:
        known = ", ".join(lr_schedules.VALID_LR_SCHEDULES)
        raise ConfigurationError(
            [f"You chose scheduler.type={name!r} in DeepSpeed's configuration, but it has {known}; choose among these."]
        )
    try:
        return getattr(lr_schedules, name)(optimizer, **section.get("params", {}))
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            [f"You chose the scheduler {name} in DeepSpeed's configuration, but it refuses its parameters: {error}."]
        ) from error


def _length(args: TrainingArguments, total_steps: int) -> Length:
    return Length(total_steps, args.get_warmup_steps(total_steps))
