"""Training with DeepSpeed: its engine, its learner, its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.deepspeed.configuration import DeepSpeedConfiguration, deepspeed_configuration
from hexloop.app.deepspeed.making import sharded_init, told_to_transformers
from hexloop.app.deepspeed.rules import Length
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine, RunFacts
from hexloop.ports.parallelism import Parallelism


def deepspeed_parallelism(args: TrainingArguments, device: Device) -> Parallelism[Any]:
    """An engine by the configuration of the arguments, on this device."""
    import torch

    from hexloop.adapters.engines.deepspeed.engine import DeepSpeed

    configuration = _configuration(args)

    def for_model(model: Any) -> dict[str, Any]:
        values, problems = configuration.for_model(model)
        if problems:
            raise ConfigurationError(problems)
        return values

    return DeepSpeed(
        torch.device(device.name), args.world_size, configuration.stage, for_model, args.local_process_index
    )


def problems(args: TrainingArguments) -> Sequence[str]:
    """What is wrong with the configuration, or contradicts the arguments."""
    return _configuration(args).problems


def check(args: TrainingArguments, facts: RunFacts) -> Sequence[str]:
    """What of the configuration does not fit the model, the length of the run, or what the Trainer was given."""
    configuration = _configuration(args)
    found = [*configuration.problems, *configuration.for_model(facts.model)[1]]
    found += configuration.for_length(_length(args, facts.total_steps))[1]
    if configuration.optimizer is not None and not facts.standard_optimizer:
        found.append(
            "You chose an optimizer in DeepSpeed's configuration and gave the Trainer another; leave one of them out."
        )
    if configuration.scheduler is not None and not facts.standard_schedule:
        found.append(
            "You chose a scheduler in DeepSpeed's configuration and gave the Trainer another; leave one of them out."
        )
    return found


def precision(args: TrainingArguments) -> str:
    """The number format of the run: the engine keeps the weights in a half format, and scales losses, by itself."""
    chosen = _configuration(args).half or args.mixed_precision
    return chosen if chosen != "no" else "tf32" if args.tf32 else "fp32"


def deepspeed_schedule(args: TrainingArguments, optimizer: Any, total_steps: int) -> Any:
    """The schedule that DeepSpeed's configuration names, None where it names none.

    Raises ConfigurationError where DeepSpeed has none of that name, or refuses its parameters.
    """
    configuration = _configuration(args)
    if configuration.scheduler is None:
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


def _configuration(args: TrainingArguments) -> DeepSpeedConfiguration:
    return deepspeed_configuration(args) or DeepSpeedConfiguration({})


def _length(args: TrainingArguments, total_steps: int) -> Length:
    return Length(total_steps, args.get_warmup_steps(total_steps))


def _unprepared(parameter: Any) -> str | None:
    if not hasattr(parameter, "ds_id"):
        return None
    return (
        "You asked to evaluate or save a model that ZeRO 3 spread as it was made, but no run has prepared it yet; "
        "train first, or make it outside of zero3_init."
    )


ENGINE: Engine[TrainingArguments, Any] = Engine(
    "deepspeed",
    deepspeed_parallelism,
    problems=problems,
    check=check,
    precision=precision,
    schedule=deepspeed_schedule,
    model_init=told_to_transformers,
    sharded_init=sharded_init,
    consolidates=lambda args: _configuration(args).consolidates,
    element_count=lambda parameter: getattr(parameter, "ds_numel", parameter.numel()),
    unprepared=_unprepared,
)
