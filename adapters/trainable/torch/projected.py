"""The parameter groups of GaLore and APOLLO: weights of linear layers whose gradients are projected, and all others."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hexloop.adapters.trainable.torch.decay_groups import decayed_names, parameter_groups
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, enumeration, shown

ALL_LINEAR = ("all-linear", "all_linear")
"""The values of `optim_target_modules` that mean every linear layer."""

LONGEST = 500
"""Characters of an expression. Names of modules are short, and an expression is applied to each of them."""

SLOWEST = 0.1
"""Seconds that an expression may take for a part of a name before it is refused as too slow."""

MOST = 1000
"""Names and expressions in `optim_target_modules`."""

WAY_OUT = "set it to 'all-linear', to names of modules such as ['q_proj', 'mlp'], or to a regular expression"


class ProjectedGroups(list[dict[str, Any]]):
    """The parameter groups of a model, of which those with projected weights also have the projection's settings.

    They are, as far as they have parameters: those with and without weight decay that are not projected, then those
    with and without that are. decays: whether there is a weight decay at all; transformers passes none.
    optimizer: its name, for messages.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Any,
        settings: Mapping[str, Any],
        weight_decay: float,
        optimizer: str,
        decays: bool = True,
    ) -> None:
        self._model = model
        self._settings = dict(settings)
        self._targets = target_weights(model, targets, optimizer)
        self._decays = decays
        super().__init__(self.decayed(decayed_names(model), weight_decay))

    def decayed(self, names: list[str], weight_decay: float) -> list[dict[str, Any]]:
        """Return the groups in which the parameters of these names have the weight decay, and no others."""
        groups = parameter_groups(self._model, names if self._decays else [], weight_decay)
        others = [{**group, "params": self._those(group["params"], projected=False)} for group in groups]
        projected = [
            {**group, "params": self._those(group["params"], projected=True), **self._settings} for group in groups
        ]
        return [group for group in (*others, *projected) if group["params"]]

    def _those(self, parameters: Iterable[Any], projected: bool) -> list[Any]:
        return [each for each in parameters if (id(each) in self._targets) is projected]


PROJECTIONS = ("std", "reverse_std", "right", "left", "full")
"""The values of `proj_type`: the sides of a gradient that are projected."""

CHOICES = {"proj": ("random", "svd"), "scale_type": ("channel", "tensor"), "proj_type": PROJECTIONS}
"""The values of the settings that are words."""


def refuse_settings(settings: Mapping[str, Any], optimizer: str) -> None:
    """Raise ConfigurationError, with every problem, for settings of a projection that do not exist."""
    problems = [
        f"{name}={settings[name]!r} is not one of {', '.join(choices)}"
        for name, choices in CHOICES.items()
        if settings.get(name, choices[0]) not in choices
    ]
    problems += [
        f"{name}={settings[name]!r} is not a number from 1 on"
        for name in ("rank", "update_proj_gap")
        if settings[name] < 1
    ]
    if settings.get("proj") == "random" and settings["proj_type"] == "full":
        problems.append("proj_type='full' needs proj='svd': a random projection has one side")
    if problems:
        raise ConfigurationError(
            [Problem(f"optim={optimizer!r} refuses its optim_args: {each}.", ("optim_args",)) for each in problems]
        )


def target_weights(model: nn.Module, targets: Any, optimizer: str) -> frozenset[int]:
    """Return the ids of the trainable weights that `optim_target_modules` selects.

    targets: 'all-linear', one regular expression that matches whole names of modules, or a list, of which an entry
    selects the modules whose name contains it, or matches it as a regular expression. Only linear layers count; a
    warning lists the other layers that were selected.
    Raises ConfigurationError if there are no targets, an expression is invalid, or no trainable weight is selected.
    """
    if not targets:
        raise _refusal(f"optim={optimizer!r} needs optim_target_modules, the linear layers to project; {WAY_OUT}.")
    select = _Selection(targets)
    found, others = dict[int, str](), list[str]()
    for name, module in unwrapped(model).named_modules():
        if not (name and select.takes(name)):
            continue
        if isinstance(module, nn.Linear):
            if module.weight.requires_grad and module.weight.ndim == 2:
                found[id(module.weight)] = name
        elif isinstance(getattr(module, "weight", None), nn.Parameter) and not select.is_every:
            others.append(f"{name} ({type(module).__name__})")
    if others:
        logging.getLogger("hexloop").warning(
            "optim_target_modules=%r also selects %s, which %s projected: only linear layers (nn.Linear) are.",
            targets,
            enumeration(others[:8]) + (" and others" if len(others) > 8 else ""),
            "is not" if len(others) == 1 else "are not",
        )
    if not found:
        named = [name for name, module in unwrapped(model).named_modules() if isinstance(module, nn.Linear)]
        linear = f"its linear layers are {', '.join(named[:8])}" if named else "it has no linear layer"
        raise _refusal(
            f"optim_target_modules={shown(targets)} selects no linear layer with a trainable weight of the "
            f"{type(unwrapped(model)).__name__}: {linear}; {WAY_OUT}."
        )
    return frozenset(found)


class _Selection:
    """Which names of modules `optim_target_modules` selects."""

    def __init__(self, targets: Any) -> None:
        self.is_every = isinstance(targets, str) and targets.replace("_", "-") == ALL_LINEAR[0]
        entries: Sequence[Any] = [targets] if isinstance(targets, str) else list(targets)
        if not all(isinstance(each, str) for each in entries):
            raise _refusal(f"optim_target_modules={shown(targets)} is not text or a list of texts; {WAY_OUT}.")
        if len(entries) > MOST or any(len(each) > LONGEST for each in entries):
            raise _refusal(
                f"optim_target_modules has {len(entries)} entries, the longest of {max(map(len, entries))} characters; "
                f"at most {MOST} of {LONGEST} characters each are read, so write a shorter expression."
            )
        self._parts: Collection[str] = () if isinstance(targets, str) else entries
        self._expressions = [] if self.is_every else self._compiled(entries, required=isinstance(targets, str))

    @staticmethod
    def _compiled(entries: Sequence[str], required: bool) -> list[re.Pattern[str]]:
        """Return the expressions. In a list an entry that is not a valid one is only a name."""
        compiled = []
        for entry in entries:
            try:
                compiled.append(re.compile(entry))
            except (re.error, RecursionError, OverflowError) as error:
                if required:
                    raise _refusal(
                        f"optim_target_modules={shown(entry)} is not a valid regular expression: {error}; {WAY_OUT}."
                    ) from error
        return compiled

    def takes(self, name: str) -> bool:
        return (
            self.is_every
            or any(part in name for part in self._parts)
            or any(_matches(expression, name) for expression in self._expressions)
        )


def _matches(expression: re.Pattern[str], name: str) -> bool:
    """Return whether an expression matches a whole name.

    Repeats within repeats, such as (a+)+, can take a time that doubles with each character. So beginnings of the name
    are tried first, each a little longer. Raises ConfigurationError if one of them takes too long.
    """
    for length in (*range(8, len(name), 2), len(name)):
        before = time.perf_counter()
        found = expression.fullmatch(name, 0, length)
        if time.perf_counter() - before > SLOWEST:
            raise _refusal(
                f"The regular expression {shown(expression.pattern)} in optim_target_modules takes too long for the "
                f"module {name}: it repeats what repeats; write it with one .* instead."
            )
    return found is not None


def _refusal(problem: str) -> ConfigurationError:
    return ConfigurationError(Problem(problem, ("optim_target_modules",)))
