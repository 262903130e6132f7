"""What a run trains, and what callbacks change of it: groups that join, parameters that are unfrozen or replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import is_not, itemgetter
from typing import Any

from attrs import define

from hexloop.app.assembly.framework import Framework
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.errors import CheckpointError, RunStateError
from hexloop.domain.events import AnyEvent, EpochEnded, StepBegan, StepEnded
from hexloop.domain.run import Run
from hexloop.domain.state import JoinedGroup, RunState
from hexloop.domain.wording import enumeration

LOGGER = logging.getLogger("hexloop")

MOST_NAMED = 3
"""The most parameters that a message names."""


@define
class TrainedParameters:
    """Compares the optimizer's groups, and the model's parameters, with those at the start of the run.

    Groups that a callback added are taken up at the next boundary of a step: they follow the schedule, and checkpoints
    contain them. Parameters that a callback unfroze, and that are in no group, are put into groups of their own, with
    the options that they would have had at the start. All other changes are refused, or reported.

    The sizes of the groups are compared at every step: two numbers as a rule. What is in them is compared before each
    save. The model's parameters are only looked at if callbacks of the user's could have changed them: the frozen ones
    that are in no group at every step, and all of them before each save and at the end of each epoch.

    grouped: the optimizer's parameters. frozen: those that no group has and that are not trained, by name; with
    processes that average gradients also those that a group has. known: those of the model, by id. trainable: whether
    each was trained at the start, by name. rejoined: whether groups of a checkpoint joined, and no step was taken
    since.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    settle: Callable[[], None]
    optimizer: Any
    model: Any
    framework: Framework[Any]
    sizes: list[int]
    grouped: list[Any]
    frozen: dict[str, Any]
    known: dict[int, Any]
    trainable: dict[str, bool]
    rejoined: bool = False

    @classmethod
    def of(cls, parts: TrainerParts, run: Run[Any, Any], settle: Callable[[], None]) -> TrainedParameters:
        """Return the parameters as they are now. settle: settles the run's counters."""
        grouped, sizes, framework = _grouped(parts.optimizer), _sizes(parts.optimizer), parts.adapters.framework
        model = parts.unwrapped_model
        made = cls(parts, run, settle, parts.optimizer, model, framework, sizes, grouped, {}, {}, {})
        if all(type(each).__module__.startswith(OWN) for each in parts.callback_handler.callbacks):
            return made
        trained, named = set(map(id, grouped)), list(framework.named_parameters(model))
        averages = made.averages
        made.frozen = {
            name: each for name, each in named if not each.requires_grad and (averages or id(each) not in trained)
        }
        made.known = {id(each): each for _, each in named}
        made.trainable = {name: bool(each.requires_grad) for name, each in named}
        return made

    @property
    def averages(self) -> bool:
        """Whether processes average the gradients of the parameters that were trained when the run started."""
        capabilities = self.parts.adapters.parallelism.capabilities
        return capabilities.processes and not (capabilities.sharded or capabilities.owns_update)

    def handlers(self) -> Mapping[type[AnyEvent], Callable[[Any], None]]:
        """Return the event handlers that check at the boundaries of steps."""
        return {
            StepBegan: self.check,
            StepEnded: self.check,
            EpochEnded: lambda _: self.check_objects(),
        }

    def check_and_settle(self) -> None:
        """Check before a save, note what is trained for a resume, and settle the counters."""
        self.check()
        self.check_objects()
        if self.trainable:
            named = self.framework.named_parameters(self.model)
            now = {name: bool(each.requires_grad) for name, each in named}
            self.run.state.trainable = {
                name: trained for name, trained in now.items() if trained != self.trainable.get(name, trained)
            }
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
            LOGGER.warning(
                f"{_first_named(replaced)} of the model became other objects during the run, and stay as they are: "
                "the optimizer has the earlier ones. Copy new values into the parameters "
                "(parameter.data.copy_(values)), or replace the modules before train()."
            )

    def check(self, _event: AnyEvent | None = None) -> None:
        """Take up groups and parameters that joined.

        Raises RunStateError if the optimizer's groups changed otherwise; warns once about parameters that stay as they
        are.
        """
        if self.rejoined:  # callbacks that start with the run have been called
            self.rejoined = False
            with suppress(AttributeError):
                del self.optimizer.add_param_group
        if (sizes := _sizes(self.optimizer)) != self.sizes:
            self._take_up(sizes)
        if not self.frozen:
            return
        unfrozen = [name for name, each in self.frozen.items() if each.requires_grad]
        if unfrozen:
            self._unfreeze(unfrozen)

    # Groups that join

    def _take_up(self, sizes: list[int]) -> None:
        """Let groups that were added follow the schedule and be saved. Raises RunStateError for any other change."""
        first = len(self.sizes)
        added = self.optimizer.param_groups[first:]
        before = [each for group in self.optimizer.param_groups[:first] for each in group["params"]]
        if sizes[:first] != self.sizes or not added or any(map(is_not, before, self.grouped)):
            raise RunStateError(
                f"The optimizer's groups had {enumeration(self.sizes)} parameters when the run started, and now have "
                f"{enumeration(sizes)}: {SAME}"
            )
        names = {id(each): name for name, each in self.framework.named_parameters(self.model)}
        joined = [each for group in added for each in group["params"]]
        if any(id(each) not in names or (self.known and id(each) not in self.known) for each in joined):
            raise RunStateError(
                "A group was added to the optimizer whose parameters the model did not have when the run started, so "
                f"that no checkpoint could be resumed: {SAME}"
            )
        if reason := self._fixed([names[id(each)] for each in joined]):
            raise RunStateError(f"A group was added to the optimizer, but {reason}: {SAME}")
        rates = [float(group.get("initial_lr", group["lr"])) for group in added]
        self.framework.join_schedule(self.run.scheduler)
        for group, rate in zip(added, rates, strict=True):
            own = [names[id(each)] for each in group["params"]]
            self.run.state.joined_groups.append(JoinedGroup(own, rate, self.framework.group_options(group)))
            if self.parts.args.should_log:
                LOGGER.info("%s joined the optimizer, with a learning rate of %g at the peak.", _first_named(own), rate)
        self._note_groups()

    def _fixed(self, names: Sequence[str]) -> str | None:
        """Return why parameters cannot join; None if they can."""
        parts, args = self.parts, self.parts.args
        capabilities = parts.adapters.parallelism.capabilities
        if capabilities.sharded or capabilities.owns_update or capabilities.owns_state:
            return f"the parallelism {capabilities.name} distributes the optimizer when the run starts"
        if not parts.rules.own_order:
            return "transformers has no schedule for it, which reproduce follows"
        if args.capture_step:
            return "capture_step has recorded a step without it"
        if not {"skip", "rollback"}.isdisjoint((args.on_nonfinite, args.on_spike)):
            return "on_nonfinite or on_spike would return to a state without it"
        if not self.framework.can_join(self.run.scheduler, self.optimizer):
            return "the schedule, or the optimizer, was made for the groups at the start"
        if self.averages and not all(self.trainable.get(name, True) for name in names):
            return "the processes average the gradients of those parameters only that were trained at the start"
        return None

    def _unfreeze(self, names: list[str]) -> None:
        """Put parameters that are trained now into groups. Those that cannot be are reported once."""
        grouped = set(map(id, self.grouped))
        if self.averages and any(id(self.frozen[name]) in grouped for name in names):
            raise RunStateError(
                f"{_first_named(names)} of the model had requires_grad set during the run, and the processes average "
                "the gradients of those parameters only that were trained at the start: set requires_grad before "
                "train(), with a learning rate of 0 for those that are to be trained later."
            )
        groups = None if self._fixed(names) else self.framework.joining_groups(self.parts, names)
        if groups is None:
            self.frozen = {}
            LOGGER.warning(
                f"{_first_named(names)} of the model had requires_grad set during the run, and stay as they are: "
                "the optimizer was made without them, as in transformers. Pass an optimizer that has them from the "
                "start (optimizers=(optimizer, None)), where frozen parameters are skipped until they are unfrozen; "
                "or unfreeze them before train()."
            )
            return
        for group in groups:
            self.optimizer.add_param_group(group)
        self._take_up(_sizes(self.optimizer))

    def _note_groups(self) -> None:
        self.sizes, self.grouped = _sizes(self.optimizer), _grouped(self.optimizer)
        grouped = set(map(id, self.grouped))
        self.frozen = {name: each for name, each in self.frozen.items() if id(each) not in grouped}

    def rejoin(self, state: RunState) -> None:
        """Give the optimizer the groups that joined before a checkpoint, and train what was trained then.

        Raises CheckpointError if the model does not have the parameters, or no group can join.
        """
        if not (state.joined_groups or state.trainable):
            return
        named = dict(self.framework.named_parameters(self.model))
        joined = [name for group in state.joined_groups for name in group.params]
        if unknown := [name for name in (*joined, *state.trainable) if name not in named]:
            raise CheckpointError(
                f"The checkpoint's run changed what it trained of {_first_named(unknown)}, which the model of this run "
                "does not have; resume with the same model."
            )
        if joined and (reason := self._fixed(joined)):
            raise CheckpointError(
                f"Parameter groups joined the optimizer of the checkpoint's run, but {reason}; resume with the "
                "settings of the checkpoint."
            )
        for name, trained in state.trainable.items():
            named[name].requires_grad_(trained)
        for group in state.joined_groups:
            parameters = [named[name] for name in group.params]
            self.framework.rejoin_group(self.optimizer, parameters, group)
        if joined:
            self.framework.join_schedule(self.run.scheduler)
            self._note_groups()
            self._expect_again({id(named[name]) for name in joined})

    def _expect_again(self, joined: set[int]) -> None:
        """Until the first step, ignore that a callback adds parameters again that joined before the checkpoint."""
        optimizer, add = self.optimizer, self.optimizer.add_param_group

        def add_unless_there(group: dict[str, Any]) -> None:
            given = group["params"]
            if isinstance(given, Iterator):
                given = list(given)
                group = {**group, "params": given}
            if isinstance(given, list | tuple | set) and joined.issuperset(map(id, given)):
                return
            if id(given) not in joined:
                add(group)

        optimizer.add_param_group = add_unless_there
        self.rejoined = True


OWN = ("hexloop.", "transformers.")
"""The packages whose own callbacks unfreeze nothing."""

SAME = (
    "schedule, checkpoints and gradients of other processes belong to the groups that a run starts with. Override "
    "create_optimizer to make all groups at the start, with a learning rate of 0 for those that join later; or end the "
    "run here with request_stop(save=True), and start another with the new optimizer."
)


def _first_named(names: list[str]) -> str:
    return enumeration([*names[:MOST_NAMED], *([f"{len(names) - MOST_NAMED} more"] if names[MOST_NAMED:] else [])])


def _grouped(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _sizes(optimizer: Any) -> list[int]:
    return list(map(len, map(_PARAMETERS, optimizer.param_groups)))


_PARAMETERS = itemgetter("params")
