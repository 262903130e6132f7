"""The optimizer of a run whose parameters are grouped by rules, and the checks of the rules before the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from hexloop.adapters.trainable.torch.group_rules import RuledGroups, own_names, summaries
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.parameter_groups import parameter_rules
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.model import choose_named_optimizer, choose_optimizer, decayed_names
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem


def ruled_groups(
    args: TrainingArguments, model: Any, main: tuple[Any, dict[str, Any]], decayed: Collection[str]
) -> RuledGroups:
    """Return how the rules of the arguments group the parameters of a model.

    main: the class of the run's optimizer, and its options. decayed: the names of the parameters with weight decay.
    """
    choose = partial(choose_named_optimizer, args, model)
    return RuledGroups(parameter_rules(args), main, own_names(model, decayed), args.weight_decay, choose)


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
    if parts.optimizer_cls_and_kwargs is not None:
        main: tuple[Any, dict[str, Any]] = parts.optimizer_cls_and_kwargs
    elif parts.hooks.chooses_optimizer:
        main = parts.hooks.get_optimizer_cls_and_kwargs(args, model)
    else:
        main = choose_optimizer(args, model)
    ruled_groups(args, model, main, decayed_names(model)).refuse(model)


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
