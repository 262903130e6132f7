"""The optimizer of a run whose parameters are grouped by rules, and the checks of the rules before the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from hexloop.adapters.scheduler.torch.run_schedules import LambdaScheduler, MetricScheduler
from hexloop.adapters.trainable.torch.group_rules import (
    RuledGroups,
    group_options,
    options_of_group,
    own_names,
    summaries,
    takes_groups,
    with_rates,
)
from hexloop.adapters.trainable.torch.optimizers import complete
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.parameter_groups import parameter_rules
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.model import choose_named_optimizer, choose_optimizer, decayed_names
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.state import JoinedGroup
from hexloop.domain.wording import Problem, listed
from hexloop.ports.learner import Scheduler

__all__ = ["group_options"]
"""A name of an adapter that the framework gets from here."""


def ruled_groups(
    args: TrainingArguments, model: Any, main: tuple[Any, dict[str, Any]], decayed: Collection[str]
) -> RuledGroups:
    """Return how the rules of the arguments group the parameters of a model.

    main: the class of the run's optimizer, and its options. decayed: the names of the parameters with weight decay.
    """
    choose = partial(choose_named_optimizer, args, model)
    decay = args.weight_decay
    return RuledGroups(parameter_rules(args), main, own_names(model, decayed), decay, choose, complete)


def build_by_rules(
    args: TrainingArguments, model: Any, main: tuple[Any, dict[str, Any]], decayed: Collection[str]
) -> Any:
    """Return the optimizer of a prepared model, with the groups of `param_groups`. See `ruled_groups`.

    Raises ConfigurationError, with every problem, if the rules do not fit the model or the optimizer.
    """
    groups = ruled_groups(args, model, main, decayed)
    groups.refuse(model)
    return groups.build(model)


def refuse_groups(parts: TrainerParts) -> None:
    """Raise ConfigurationError, with every problem, if `param_groups` does not fit the model or the optimizer."""
    args, model = parts.args, parts.unwrapped_model
    if not args.param_groups:
        return
    if not parts.own_optimizer:
        raise ConfigurationError(
            Problem(
                "You chose param_groups, but the Trainer was given an optimizer (optimizers=(...), or "
                "trainer.optimizer), which has its own groups; leave one of them out, or pass the optimizer's class as "
                "optimizer_cls_and_kwargs.",
                ("param_groups",),
            )
        )
    if args.capture_step and any(each.optimizer for each in parameter_rules(args)):
        raise ConfigurationError(
            "You chose capture_step=True and a rule of param_groups with an optimizer of its own, but only the step of "
            "one optimizer can be recorded; leave one of them out."
        )
    ruled_groups(args, model, _main(parts), decayed_names(model)).refuse(model)


def _main(parts: TrainerParts) -> tuple[Any, dict[str, Any]]:
    """Return the class of the run's optimizer, and its options."""
    if parts.optimizer_cls_and_kwargs is not None:
        return parts.optimizer_cls_and_kwargs
    if parts.hooks.chooses_optimizer:
        chosen: tuple[Any, dict[str, Any]] = parts.hooks.get_optimizer_cls_and_kwargs(parts.args, parts.model)
        return chosen
    return choose_optimizer(parts.args, parts.model)


def group_lines(parts: TrainerParts) -> Iterable[dict[str, Any]]:
    """Return what each parameter group is, as plain values for a report; nothing without `param_groups`."""
    rules = parameter_rules(parts.args)
    if not rules:
        return []
    return [
        {
            "rule": each.rule,
            "patterns": list(each.patterns),
            "optimizer": each.optimizer,
            "tensors": each.tensors,
            "parameters": each.elements,
            "learning_rate": each.learning_rate,
            "weight_decay": each.weight_decay,
        }
        for each in summaries(parts.optimizer, rules)
    ]


def rate_groups(parts: TrainerParts) -> dict[str, int]:
    """Return the first group of each rule, which is the nearest to the output, by the name of the rule."""
    if not parts.args.param_groups:
        return {}
    found: dict[str, int] = {}
    for number, group in enumerate(parts.optimizer.param_groups):
        if "name" in group:
            found.setdefault(str(group["name"]), number)
    return found


# Groups that join during a run


def can_join(scheduler: Scheduler, optimizer: Any) -> bool:
    """See `Framework.can_join`: schedules of the arguments can, and optimizers that take any group."""
    return isinstance(scheduler, LambdaScheduler | MetricScheduler) and takes_groups(type(optimizer))


def join_schedule(scheduler: Scheduler) -> None:
    """See `Framework.join_schedule`."""
    if isinstance(scheduler, LambdaScheduler | MetricScheduler):
        scheduler.join()


def joining_groups(parts: TrainerParts, names: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return the groups that parameters would have had at the start; None for an optimizer of the user's.

    The rates are those of the optimizer, multiplied as the rules of `param_groups` say.
    """
    if parts.optimizer is None or parts.optimizer is not parts.standard_optimizer:
        return None
    main, model = _main(parts), parts.unwrapped_model
    if not takes_groups(*main):
        return None
    found = ruled_groups(parts.args, model, main, decayed_names(model)).groups(model, names)
    with_rates(found, parts.optimizer)
    return found


def rejoin_group(optimizer: Any, parameters: Sequence[Any], group: JoinedGroup) -> None:
    """See `Framework.rejoin_group`."""
    try:
        options = options_of_group(optimizer, group.options)
        optimizer.add_param_group({"params": list(parameters), **options, "lr": group.learning_rate})
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"The parameter group of {listed(group.params, ', ')} that joined the optimizer of the checkpoint's run "
            f"cannot be made again: {error}; resume with the same optimizer."
        ) from error
