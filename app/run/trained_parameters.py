"""Whether a run still trains what it started with: changes that callbacks make are refused, or reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from operator import is_not, itemgetter
from typing import Any

from attrs import define

from hexloop.app.assembly.framework import Framework
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.errors import RunStateError
from hexloop.domain.events import AnyEvent, EpochEnded, StepBegan, StepEnded
from hexloop.domain.wording import enumeration

MOST_NAMED = 3
"""The most parameters that a message names."""


@define
class TrainedParameters:
    """Compares the optimizer's groups, and the model's parameters, with those at the start of the run.

    The sizes of the groups are compared at every step: two numbers as a rule. What is in them is compared before each
    save. The model's parameters are only looked at if callbacks of the user's could have changed them: the frozen ones
    that are in no group at every step, and all of them before each save and at the end of each epoch.
    """

    optimizer: Any
    model: Any
    sizes: list[int]
    grouped: list[Any]
    frozen: dict[str, Any]
    known: dict[int, Any]
    settle: Callable[[], None]
    framework: Framework[Any]

    @classmethod
    def of(cls, parts: TrainerParts, settle: Callable[[], None]) -> TrainedParameters:
        """Return the parameters as they are now. settle: settles the run's counters."""
        grouped, model = _grouped(parts.optimizer), parts.unwrapped_model
        sizes, framework = _sizes(parts.optimizer), parts.adapters.framework
        if all(type(each).__module__.startswith(OWN) for each in parts.callback_handler.callbacks):
            return cls(parts.optimizer, model, sizes, grouped, {}, {}, settle, framework)
        trained, named = set(map(id, grouped)), list(framework.named_parameters(model))
        frozen = {name: each for name, each in named if not each.requires_grad and id(each) not in trained}
        return cls(
            parts.optimizer, model, sizes, grouped, frozen, {id(each): each for _, each in named}, settle, framework
        )

    def handlers(self) -> Mapping[type[AnyEvent], Callable[[Any], None]]:
        """Return the event handlers that check at the boundaries of steps."""
        return {
            StepBegan: self.check,
            StepEnded: self.check,
            EpochEnded: lambda _: self.check_objects(),
        }

    def check_and_settle(self) -> None:
        """Check before a save, because one of other groups could not be resumed, and settle the counters."""
        self.check()
        self.check_objects()
        self.settle()

    def check_objects(self) -> None:
        """Raise RunStateError if groups have other parameters; warn once of new parameters in the model."""
        grouped = _grouped(self.optimizer)
        if len(grouped) != len(self.grouped) or any(map(is_not, grouped, self.grouped)):
            raise RunStateError(f"The optimizer's groups have other parameters than when the run started: {SAME}")
        if not self.known:
            return
        named = self.framework.named_parameters(self.model)
        replaced = [name for name, each in named if each.requires_grad and id(each) not in self.known]
        if replaced:
            self.known = {}
            logging.getLogger("hexloop").warning(
                f"{_first_named(replaced)} of the model became other objects during the run, and stay as they are: "
                "the optimizer has the earlier ones. Copy new values into the parameters "
                "(parameter.data.copy_(values)), or replace the modules before train()."
            )

    def check(self, _event: AnyEvent | None = None) -> None:
        """Raise RunStateError if the optimizer's groups changed; warn once about parameters that are not trained."""
        if (sizes := _sizes(self.optimizer)) != self.sizes:
            raise RunStateError(
                f"The optimizer's groups had {enumeration(self.sizes)} parameters when the run started, and now have "
                f"{enumeration(sizes)}: {SAME}"
            )
        if not self.frozen:
            return
        unfrozen = [name for name, each in self.frozen.items() if each.requires_grad]
        if unfrozen:
            self.frozen = {}
            logging.getLogger("hexloop").warning(
                f"{_first_named(unfrozen)} of the model had requires_grad set during the run, and stay as they are: "
                "the optimizer was made without them, as in transformers. Pass an optimizer that has them from the "
                "start (optimizers=(optimizer, None)), where frozen parameters are skipped until they are unfrozen; "
                "or unfreeze them before train()."
            )


OWN = ("hexloop.", "transformers.")
"""The packages whose own callbacks unfreeze nothing."""

SAME = (
    "a run trains the same parameters from its start to its end, because schedule, checkpoints and gradients of other "
    "processes belong to them. Override create_optimizer to make all groups at the start, with a learning rate of 0 "
    "for those that join later; or end the run here with request_stop(save=True), and start another with the new "
    "optimizer."
)


def _first_named(names: list[str]) -> str:
    return enumeration([*names[:MOST_NAMED], *([f"{len(names) - MOST_NAMED} more"] if names[MOST_NAMED:] else [])])


def _grouped(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _sizes(optimizer: Any) -> list[int]:
    return list(map(len, map(_PARAMETERS, optimizer.param_groups)))


_PARAMETERS = itemgetter("params")
