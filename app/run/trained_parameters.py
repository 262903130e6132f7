"""Whether a run still trains what it started with: changes that callbacks make are refused, or reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define

from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import RunStateError
from hexloop.domain.events import AnyEvent, StepBegan, StepEnded
from hexloop.domain.wording import enumeration

MOST_NAMED = 3
"""The most parameters that a message names."""


@define
class TrainedParameters:
    """Compares the optimizer's groups, and the frozen parameters outside of it, with those at the start of the run.

    The groups are compared at every step, which are two numbers as a rule. Parameters are only looked at if callbacks
    of the user's could have unfrozen them, and only those that are in no group.
    """

    optimizer: Any
    sizes: list[int]
    frozen: dict[str, Any]
    settle: Callable[[], None]

    @classmethod
    def of(cls, parts: TrainerParts, settle: Callable[[], None]) -> TrainedParameters:
        """Return the parameters as they are now. settle: settles the run's counters."""
        trained = {id(each) for group in parts.optimizer.param_groups for each in group["params"]}
        frozen = {
            name: each
            for name, each in parts.unwrapped_model.named_parameters()
            if not each.requires_grad and id(each) not in trained
        }
        of_user = any(not type(each).__module__.startswith(OWN) for each in parts.callback_handler.callbacks)
        return cls(parts.optimizer, _sizes(parts.optimizer), frozen if of_user else {}, settle)

    def handlers(self) -> Mapping[type[AnyEvent], Callable[[Any], None]]:
        """Return the event handlers that check at the boundaries of steps."""
        return {StepBegan: lambda _: self.check(), StepEnded: lambda _: self.check()}

    def check_and_settle(self) -> None:
        """Check before a save, because one of other groups could not be resumed, and settle the counters."""
        self.check()
        self.settle()

    def check(self) -> None:
        """Raise RunStateError if the optimizer's groups changed; warn once about parameters that are not trained."""
        if (sizes := _sizes(self.optimizer)) != self.sizes:
            raise RunStateError(
                f"The optimizer's groups had {enumeration(self.sizes)} parameters when the run started, and now have "
                f"{enumeration(sizes)}: a run trains the same parameters from its start to its end, because schedule, "
                "checkpoints and gradients of other processes belong to them. Override create_optimizer to make all "
                "groups at the start, with a learning rate of 0 for those that join later; or end the run here with "
                "request_stop(save=True), and start another with the new optimizer."
            )
        unfrozen = [name for name, each in self.frozen.items() if each.requires_grad]
        if unfrozen:
            self.frozen = {}
            named = [*unfrozen[:MOST_NAMED], *([f"{len(unfrozen) - MOST_NAMED} more"] if unfrozen[MOST_NAMED:] else [])]
            logging.getLogger("hexloop").warning(
                f"{enumeration(named)} of the model had requires_grad set during the run, and stay as they are: the "
                "optimizer was made without them, as in transformers. Pass an optimizer that has them from the start "
                "(optimizers=(optimizer, None)), where frozen parameters are skipped until they are unfrozen; or "
                "unfreeze them before train()."
            )


OWN = ("hexloop.", "transformers.")
"""The packages whose own callbacks unfreeze nothing."""


def _sizes(optimizer: Any) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
