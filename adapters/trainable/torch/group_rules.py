"""Parameter groups by rules: which groups a model's parameters make, and the optimizers of these groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.composite import MEMBER, PART, CompositeOptimizer, composed, owner_of
from hexloop.adapters.trainable.torch.decay_groups import step_equal_groups_at_once
from hexloop.adapters.trainable.torch.names import by_own_names
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.parameter_rules import INSTEAD, READERS, GroupRule, distances_to_output, matches, number_in
from hexloop.domain.wording import RefusalError, did_you_mean, shown

ClassAndOptions: TypeAlias = tuple[Any, dict[str, Any]]

Choice: TypeAlias = Callable[[str, str | None], ClassAndOptions]
"""Returns the class of an optimizer, by its name and `optim_args`, and its keyword arguments."""

NAME = "name"
"""The key of a parameter group with the name of its rule."""

FACTOR = "learning_rate_factor"
"""The key of a group by which its rate is multiplied once the optimizer has set it. It is gone afterwards."""

MAIN = "main"
"""The name of the run's optimizer among several."""

OWN_KEYS = frozenset({"params", "param_names", "lr", "initial_lr", NAME, MEMBER, PART, FACTOR})
"""The keys of a group that are no options of an optimizer."""


@frozen
class GroupPlan:
    """A parameter group before it is made.

    rule: its number; None for parameters that no rule is for. distance: to the output, for layer-wise decay; 0 without
    it. member: the name of the optimizer. part: which part of an optimizer that consists of several. decayed: whether
    weight decay applies by default.
    """

    rule: int | None
    distance: int
    member: str
    part: str | None
    decayed: bool


@frozen
class RuledGroups:
    """How the parameters of a model are grouped, by rules where there are some.

    main: the class of the run's optimizer, and its options. decayed: the names of the parameters with weight decay.
    weight_decay: of these. choose: returns the class and the options of an optimizer that a rule names.
    complete: called with the model, the class, the options and the optimizer for each that was made.
    """

    rules: Sequence[GroupRule]
    main: ClassAndOptions
    decayed: Collection[str]
    weight_decay: float
    choose: Choice = lambda name, further: (name, {})
    complete: Callable[[nn.Module, Any, Mapping[str, Any], Optimizer], None] = lambda *_: None
    _probes: dict[str, dict[str | None, dict[str, Any]]] = field(factory=dict, init=False, eq=False)

    # Checks

    def refuse(self, model: nn.Module) -> None:
        """Raise ConfigurationError, with every problem, if the rules do not fit the model or the optimizers."""
        named = named_parameters(model)
        _, problems = matches(self.rules, {name: each.ndim for name, each in named.items()})
        if any(rule.layer_decay is not None for rule in self.rules) and not any(distances_to_output([*named]).values()):
            problems.append(
                "param_groups has a layer_decay, but the model has no numbered layers (such as encoder.layer.0), so "
                "that parameters have no depth; give each part a rule with a learning_rate_factor."
            )
        for rule in self.rules:
            problems += self._rule_problems(rule)
        if problems:
            raise ConfigurationError(problems)

    def _rule_problems(self, rule: GroupRule) -> Iterator[str]:
        if rule.frozen and rule.optimizer is not None:
            yield (
                f"The rule {rule.name!r} of param_groups is frozen and has an optimizer of its own, which would have "
                "nothing to do; leave one of them out."
            )
            return
        try:
            optimizer_class, options = self._class_of(rule)
        except ConfigurationError as error:
            yield from (f"In the rule {rule.name!r} of param_groups: {each}" for each in error.problems)
            return
        if not takes_groups(optimizer_class, options):
            name = "The optimizer of the run" if rule.optimizer is None else f"The optimizer {rule.optimizer!r}"
            yield (
                f"{name} makes its parameter groups itself, so that the rule {rule.name!r} of param_groups would have "
                "no effect; choose an optimizer that takes groups, such as adamw_torch, or leave the rule out."
            )
            return
        try:
            known = self._options_of(rule)
        except ValueError as error:
            yield f"The optimizer of the rule {rule.name!r} of param_groups refuses its options: {error}."
            return
        if rule.weight_decay is not None and not any("weight_decay" in each for each in known.values()):
            yield (
                f"The rule {rule.name!r} of param_groups has a weight_decay, but {optimizer_class.__name__} has none; "
                "leave it out."
            )
        rates = any(each.get("lr", 0.0) is None for each in known.values())
        changes = (rule.learning_rate, rule.learning_rate_factor, rule.layer_decay)
        if rates and any(each is not None for each in changes):
            yield (
                f"The rule {rule.name!r} of param_groups sets a rate, but {optimizer_class.__name__} computes its own; "
                "leave the rate out, or give the optimizer a learning rate."
            )
        for key, value in rule.options.items():
            yield from self._option_problems(rule, key, value, optimizer_class, options, known)

    def _option_problems(
        self,
        rule: GroupRule,
        key: str,
        value: Any,
        optimizer_class: Any,
        options: Mapping[str, Any],
        known: Mapping[str | None, Mapping[str, Any]],
    ) -> Iterator[str]:
        having = [each for each in known.values() if key in each and key not in OWN_KEYS]
        if not having:
            choices = sorted({*READERS, *({name for each in known.values() for name in each} - OWN_KEYS)})
            remedy = (
                f"write {INSTEAD[key]}."
                if key in INSTEAD
                else did_you_mean(key, choices, f"choose among {', '.join(choices)}.")
            )
            yield (
                f"You chose {key}={shown(value)} in the rule {rule.name!r} of param_groups, but rules and the groups "
                f"of {optimizer_class.__name__} have no {key}; {remedy}"
            )
            return
        try:
            read = option_like(value, having[0][key])
            parameter = inspect.signature(optimizer_class).parameters.get(key)
            if parameter is not None:
                if parameter.annotation in ("int", int) and read != int(read):
                    raise RefusalError("it takes a whole number", "give one")
                _probe(optimizer_class, {**options, key: read})
        except RefusalError as refusal:
            yield f"You chose {key}={shown(value)} in the rule {rule.name!r} of param_groups, but {refusal}."
        except (ValueError, TypeError) as error:
            yield (
                f"You chose {key}={shown(value)} in the rule {rule.name!r} of param_groups, but "
                f"{optimizer_class.__name__} refuses it: {error}; change it."
            )

    def _class_of(self, rule: GroupRule) -> ClassAndOptions:
        return self.main if rule.optimizer is None else self.choose(rule.optimizer, rule.optim_args)

    def _options_of(self, rule: GroupRule) -> dict[str | None, dict[str, Any]]:
        """Return the options of a group with their defaults, for each part of the rule's optimizer."""
        member = member_name(rule)
        if member not in self._probes:
            self._probes[member] = _probe(*self._class_of(rule))
        return self._probes[member]

    # Groups

    def plan(self, model: nn.Module) -> dict[str, GroupPlan]:
        """Return the group of each parameter that a rule is for or that is trained, by name, in the model's order."""
        named = named_parameters(model)
        ruled, _ = matches(self.rules, {name: each.ndim for name, each in named.items()})
        layered = any(rule.layer_decay is not None for rule in self.rules)
        distances = distances_to_output([*named]) if layered else {}
        decayed = set(self.decayed)
        parts = dict[str, Mapping[str, str]]()
        found = {}
        for name in named:
            number = ruled.get(name)
            rule = None if number is None else self.rules[number]
            member = MAIN if rule is None else member_name(rule)
            optimizer_class = self.main[0] if rule is None else self._class_of(rule)[0]
            if member not in parts:
                parts[member] = parts_of(optimizer_class, model, named)
            distance = distances[name] if rule is not None and rule.layer_decay is not None else 0
            splits = rule is None or rule.weight_decay is None
            found[name] = GroupPlan(number, distance, member, parts[member].get(name), name in decayed or not splits)
        return found

    def groups(self, model: nn.Module, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Return the groups of the trained parameters, or of some of them: those without a rule first, then by rule.

        Where parameters have different depths, those at the output come first.
        """
        named, members = named_parameters(model), dict[GroupPlan, list[Tensor]]()
        for name, plan in self.plan(model).items():
            if named[name].requires_grad and (names is None or name in names):
                members.setdefault(plan, []).append(named[name])
        several = any(rule.optimizer is not None for rule in self.rules)
        return [self._group(plan, members[plan], several) for plan in sorted(members, key=_order)]

    def _group(self, plan: GroupPlan, members: list[Tensor], several: bool) -> dict[str, Any]:
        rule = None if plan.rule is None else self.rules[plan.rule]
        decay = self.weight_decay if plan.decayed else 0.0
        group: dict[str, Any] = {"params": members, "weight_decay": decay}
        if several:
            group[MEMBER] = plan.member
        if plan.part is not None:
            group[PART] = plan.part
        if rule is None:
            return group
        known = self._options_of(rule)[plan.part]
        if rule.weight_decay is not None:
            group["weight_decay"] = rule.weight_decay
        group |= {key: option_like(value, known[key]) for key, value in rule.options.items() if key in known}
        group[NAME] = rule.name
        if rule.learning_rate is not None:
            group["lr"] = rule.learning_rate
        factor = 1.0 if rule.learning_rate_factor is None else rule.learning_rate_factor
        if rule.layer_decay is not None:
            factor *= rule.layer_decay**plan.distance
        if factor != 1.0:
            group[FACTOR] = factor
        return group

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of the model's trained parameters. Raises ConfigurationError if a class refuses it."""
        groups = self.groups(model)
        if not groups:
            raise ConfigurationError(
                "No parameter is trained: the rules of param_groups freeze all of them; leave one of them out."
            )
        classes = {MAIN: self.main} | {
            member_name(rule): self._class_of(rule) for rule in self.rules if rule.optimizer is not None
        }
        members = {}
        for name, (optimizer_class, options) in classes.items():
            own = [group for group in groups if group.get(MEMBER, name) == name]
            try:  # without parameters it may get some that a callback unfreezes
                members[name] = optimizer_class(own or [{"params": [], MEMBER: name}], **_without_first(options))
            except (ValueError, TypeError) as error:
                raise ConfigurationError(
                    f"{optimizer_class.__name__} refuses the groups of param_groups: {error}; change the rules, or "
                    "choose another optimizer."
                ) from error
            self.complete(model, optimizer_class, options, members[name])
        optimizer = composed(members)
        apply_factors(optimizer.param_groups)
        if len(members) == 1:
            step_equal_groups_at_once(optimizer)
        return optimizer


def _order(plan: GroupPlan) -> tuple[Any, ...]:
    number = -1 if plan.rule is None else plan.rule
    return number, plan.distance, plan.part or "", not plan.decayed


def member_name(rule: GroupRule) -> str:
    """Return the name of a rule's optimizer, under which groups can be added to it."""
    if rule.optimizer is None:
        return MAIN
    return rule.optimizer if rule.optim_args is None else f"{rule.optimizer}({rule.optim_args})"


def named_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters under the names that they have in the user's model."""
    return by_own_names(model, dict(model.named_parameters()))


def own_names(model: nn.Module, names: Collection[str]) -> Collection[str]:
    """Return names of parameters as they are in the user's model, whatever wraps it."""
    return by_own_names(model, dict.fromkeys(names)).keys()


def parts_of(optimizer_class: Any, model: nn.Module, named: Mapping[str, Tensor]) -> Mapping[str, str]:
    """Return which part of an optimizer that consists of several updates each parameter; nothing for others."""
    find = getattr(optimizer_class, "parts_of", None)
    return {} if find is None else find(model, named)


def apply_factors(groups: Sequence[dict[str, Any]]) -> None:
    """Multiply the rates of groups that have a factor. Rates that are tensors become those of one group each."""
    for group in groups:
        factor = group.pop(FACTOR, 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"] * factor
        elif factor != 1.0:
            group["lr"] *= factor


def option_like(value: Any, default: Any) -> Any:
    """Return the value of an option of the kind of its default. Raises RefusalError if it is of another kind."""
    if default is None:
        return tuple(value) if isinstance(value, list) else value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise RefusalError("it takes true or false", "give one of them")
        return value
    if isinstance(default, int | float | Tensor):
        number = number_in(value)
        if number is None:
            raise RefusalError("it takes a number", "give one")
        is_whole = isinstance(default, int) and number == int(number)
        return int(number) if is_whole and not isinstance(value, float) else number
    if isinstance(default, tuple | list):
        if not isinstance(value, tuple | list) or len(value) != len(default):
            raise RefusalError(f"it takes a list of {len(default)} items", "give one")
        items = [option_like(each, own) for each, own in zip(value, default, strict=True)]
        return tuple(items) if isinstance(default, tuple) else items
    if isinstance(default, str):
        if not isinstance(value, str):
            raise RefusalError("it takes text", "give one")
        return value
    raise RefusalError("it cannot be set for a group", "leave it out")


def takes_groups(optimizer_class: Any, options: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Return whether an optimizer is made from parameter groups, and takes further ones."""
    is_class = isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)
    return is_class and not {"params", "model", "optimizer_dict"} & options.keys()


def _without_first(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("params", "model", "optimizer_dict")}


def _probe(optimizer_class: Any, options: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    """Return the options of the groups of an optimizer, with their values, for each of its parts.

    It is constructed for a matrix of its own. Raises ValueError or TypeError if it refuses the options.
    """
    parts: Sequence[str | None] = getattr(optimizer_class, "parts", (None,))
    groups = [{"params": [nn.Parameter(torch.zeros(2, 2))], **({} if part is None else {PART: part})} for part in parts]
    made = optimizer_class(groups, **_without_first(options))
    return {
        group.get(PART): {key: value for key, value in group.items() if key not in ("params", PART)}
        for group in made.param_groups
    }


# Groups that join an optimizer during a run


def with_rates(groups: Sequence[dict[str, Any]], optimizer: Optimizer) -> None:
    """Give new groups the peak rates of an optimizer, multiplied by their factors."""
    for group in groups:
        factor = group.pop(FACTOR, 1.0)
        group["lr"] = group.get("lr", _peak_rate(group, optimizer)) * factor


def _peak_rate(group: Mapping[str, Any], optimizer: Optimizer) -> float:
    """Return the rate that the optimizer of a group has by default."""
    while isinstance(optimizer, CompositeOptimizer):
        name = group.get(PART if group.get(PART) in optimizer.members else MEMBER)
        optimizer = optimizer.members.get(str(name)) or next(iter(optimizer.members.values()))
    return float(optimizer.defaults["lr"])


NOT_RECORDED = frozenset({"params", "param_names", "lr", "initial_lr", "max_lr", "min_lr"})
"""The keys of a group that are recorded otherwise, or follow from the schedule."""


def group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group besides its rate, as plain values."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in group.items()
        if key not in NOT_RECORDED and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def options_of_group(optimizer: Optimizer, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that `group_options` returned, of the types that the optimizer's have.

    Raises ValueError for values of other types.
    """
    while isinstance(optimizer, CompositeOptimizer):
        name = recorded.get(PART if recorded.get(PART) in optimizer.members else MEMBER)
        optimizer = optimizer.members.get(str(name)) or next(iter(optimizer.members.values()))
    defaults = optimizer.defaults
    return {
        key: option_like(value, defaults[key]) if key in defaults and value is not None else value
        for key, value in recorded.items()
        if key not in NOT_RECORDED and _is_plain(value)
    }


# Frozen parameters


def frozen_by(rules: Sequence[GroupRule], model: nn.Module) -> list[Tensor]:
    """Return the parameters that rules freeze."""
    named = named_parameters(model)
    applies = [rule.matcher() for rule in rules if rule.frozen]
    return [each for name, each in named.items() if any(matched(name, each.ndim) for matched in applies)]


# Report


@frozen
class GroupSummary:
    """A parameter group, for a report. rule: its name. optimizer: the class that updates it.

    tensors: how many parameters it has. elements: how many values these have.
    """

    rule: str | None
    patterns: tuple[str, ...]
    optimizer: str
    tensors: int
    elements: int
    learning_rate: float
    weight_decay: float | None


def summaries(optimizer: Optimizer, rules: Sequence[GroupRule]) -> list[GroupSummary]:
    """Return the groups of an optimizer, as they are now."""
    patterns = {rule.name: rule.params for rule in rules}
    return [
        GroupSummary(
            group.get(NAME),
            patterns.get(str(group.get(NAME)), ()),
            type(owner_of(optimizer, number)).__name__,
            len(group["params"]),
            sum(each.numel() for each in group["params"]),
            float(group.get("initial_lr", group["lr"])),
            group.get("weight_decay"),
        )
        for number, group in enumerate(optimizer.param_groups)
    ]
