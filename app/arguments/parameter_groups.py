"""The argument `param_groups`: rules by which parameters get learning rates and other options of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.app.arguments.conversion import NONE_WORDS, decoded
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.domain.parameter_rules import GroupRule, read_rules
from hexloop.domain.wording import RefusalError


def _rules(value: Any) -> Any:
    """Convert a rule, or JSON text of one or of a list, to a list of rules, and check each by itself."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]  # the command line takes several texts
    given: Any = decoded(value) if isinstance(value, str) else value
    if given is None or (isinstance(given, str) and given.lower() in NONE_WORDS):
        return None
    if isinstance(given, Mapping):
        given = [given]
    _, faults = read_rules(given)
    if faults:
        problems = [f"{_place(path)}{refusal.because}" for path, refusal in faults]
        raise RefusalError("; ".join(problems), faults[0][1].remedy if len(faults) == 1 else "change these rules")
    return list(given)


def _place(path: tuple[str | int, ...]) -> str:
    """Return where in the list of rules something is, for a message: the key of a rule, by the rule's number."""
    return f"{path[1]} of rule {path[0]}: " if len(path) > 1 else ""


def parameter_rules(args: Any) -> list[GroupRule]:
    """Return the rules of `param_groups`, none if it is unset."""
    given = getattr(args, "param_groups", None)
    return read_rules(given)[0] if given else []


@argument_group
class ParameterGroupArguments(ArgumentGroup):
    """Parameter groups.

    Args:
        param_groups: a list of rules. Each names parameters by patterns as `params`, and says what applies to them:
            `learning_rate`, or `learning_rate_factor` of that of the run; `weight_decay`; `layer_decay`, by which the
            rate is multiplied once for each layer between a parameter and the output; `frozen`; `optimizer` and
            `optim_args` of their own; or any other option of the optimizer's groups, such as `betas`. `except` and
            `ndim` leave parameters out. Parameters that no rule is for keep the options of the run.
    """

    param_groups: list[dict[str, Any]] | str | None = argument(
        default=None,
        prepare=_rules,
        help='rules for groups of parameters, as JSON: [{"params": "encoder.*", "learning_rate": 1e-5}]',
    )

    @rule("reproduce", "param_groups")
    def _groups_that_can_be_reproduced(self) -> None:
        if getattr(self, "reproduce", None) is not None and self.param_groups:
            raise RefusalError("transformers' Trainer has two groups, with and without weight decay", "leave one out")
