"""Several optimizers, each over parameter groups of its own, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

MEMBER = "optimizer"
"""The key of a parameter group that names the optimizer that updates it."""

PART = "part"
"""The key of a group that says which part of an optimizer updates it, of one that consists of several by itself."""

FURTHER = "members"
"""The key of a state dict for what the optimizers keep besides groups and the state of parameters, by their names."""


class CompositeOptimizer(Optimizer):
    """Several optimizers behind the interface of one.

    `param_groups` holds the groups of all of them, the same dictionaries that they hold, so that what a schedule writes
    reaches them. The state dict is like that of one optimizer with these groups. A step is one of each optimizer.

    members: the optimizers by name; their parameters are disjoint. A group that is added belongs to the one that it
    names as "optimizer", otherwise to the first one, whose `defaults` are also those of this optimizer.
    """

    state: Any

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        self._members, self._owners = dict(members), dict[Tensor, str]()
        self._places = list[tuple[str, int]]()
        first = next(iter(self._members.values()))
        self._adopts = True
        groups = []
        for name, member in self._members.items():
            for number, group in enumerate(member.param_groups):
                self._note(name, number, group)
                groups.append(group)
        super().__init__(groups, dict(first.defaults))
        self._adopts = False
        self.state = MemberStates(self._members, self._owners)

    @property
    def members(self) -> Mapping[str, Optimizer]:
        """The optimizers by name."""
        return self._members

    def member_of(self, number: int) -> Optimizer:
        """Return the optimizer that has a parameter group."""
        return self._members[self._places[number][0]]

    def _note(self, name: str, number: int, group: Mapping[str, Any]) -> None:
        """Note that a group is an optimizer's. Raises ValueError if another one has one of its parameters."""
        if any(parameter in self._owners for parameter in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")
        self._owners.update(dict.fromkeys(group["params"], name))
        self._places.append((name, number))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer that it names as "optimizer", or to the first one.

        Raises ValueError if there is no such optimizer, or if another one has one of the parameters.
        """
        if self._adopts:
            self.param_groups.append(param_group)
            return
        self._add(param_group.get(MEMBER, next(iter(self._members))), param_group)

    def _add(self, name: str, param_group: Mapping[str, Any]) -> None:
        """Add a group to one of the optimizers."""
        if name not in self._members:
            raise ValueError(f"there is no optimizer {name!r}; the group can name one of {', '.join(self._members)}")
        given = param_group["params"]
        parameters = [given] if isinstance(given, Tensor) else list(given)
        if any(parameter in self._owners for parameter in parameters):
            raise ValueError("some parameters appear in more than one parameter group")
        member = self._members[name]
        before = len(member.param_groups)
        member.add_param_group({**param_group, "params": parameters})
        for number, group in enumerate(member.param_groups[before:], before):
            self._note(name, number, group)
            self.param_groups.append(group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of each optimizer. closure: computes the loss, once for all of them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self._members.values():
            member.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all optimizers, with the groups and parameters in the order of `param_groups`."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        state, packed, further = dict[Any, Any](), dict[tuple[str, int], Any](), dict[str, Any]()
        for name, member in self._members.items():
            kept, own = member.state_dict(), [each for group in member.param_groups for each in group["params"]]
            others = {}
            for key, values in kept["state"].items():
                if isinstance(key, int) and key < len(own):
                    state[numbers[own[key]]] = values
                else:
                    others[key] = values
            for number, group in enumerate(kept["param_groups"]):
                parameters = member.param_groups[number]["params"]
                packed[name, number] = {**group, "params": [numbers[each] for each in parameters]}
            top = {key: value for key, value in kept.items() if key not in ("state", "param_groups")}
            if others or top:
                further[name] = {"state": others, "top": top}
        found = {"state": state, "param_groups": [packed[place] for place in self._places]}
        if further:
            found[FURTHER] = further
        for changed in self._optimizer_state_dict_post_hooks.values():
            found = changed(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of such an optimizer. Raises ValueError if its groups are others."""
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        saved = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in saved]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            raise ValueError(f"the state dict has groups of {sizes} parameters, and this optimizer has others")
        by_member: dict[str, list[Any]] = {name: [] for name in self._members}
        for (name, _), group in sorted(zip(self._places, saved, strict=True), key=lambda pair: pair[0][1]):
            by_member[name].append(group)
        for name, member in self._members.items():
            numbers = [number for group in by_member[name] for number in group["params"]]
            further = state_dict.get(FURTHER, {}).get(name, {})
            state = {place: state_dict["state"][number] for place, number in enumerate(numbers)
                     if number in state_dict["state"]}  # fmt: skip
            places = iter(range(len(numbers)))
            groups = [{**group, "params": [next(places) for _ in group["params"]]} for group in by_member[name]]
            own = {"state": {**state, **further.get("state", {})}, "param_groups": groups}
            member.load_state_dict({**further.get("top", {}), **own})
        self.param_groups[:] = [self._members[name].param_groups[number] for name, number in self._places]
        for loaded in self._optimizer_load_state_dict_post_hooks.values():
            loaded(self)

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made from."""
        own = {"_members": self._members, "_owners": self._owners, "_places": self._places, "_adopts": False}
        return {**super().__getstate__(), **own}


class SwitchingComposite(CompositeOptimizer):
    """Several optimizers of which some switch between training and evaluation mode."""

    def train(self) -> None:
        """Switch them to training mode."""
        self._switch("train")

    def eval(self) -> None:
        """Switch them to evaluation mode."""
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        for member in filter(switches_modes, self._members.values()):
            getattr(member, mode)()


def switches_modes(optimizer: object) -> bool:
    """Return whether an optimizer has a training and an evaluation mode."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def composed(members: Mapping[str, Optimizer]) -> Optimizer:
    """Return optimizers as one; a single one as it is."""
    if len(members) == 1:
        return next(iter(members.values()))
    return (SwitchingComposite if any(map(switches_modes, members.values())) else CompositeOptimizer)(members)


def members_of(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that an optimizer consists of: itself, unless it is a composite one."""
    if not isinstance(optimizer, CompositeOptimizer):
        return [optimizer]
    return [inner for member in optimizer.members.values() for inner in members_of(member)]


def owner_of(optimizer: Optimizer, number: int) -> Optimizer:
    """Return the optimizer that updates a parameter group."""
    while isinstance(optimizer, CompositeOptimizer):
        group = optimizer.param_groups[number]
        optimizer = optimizer.member_of(number)
        number = next(place for place, each in enumerate(optimizer.param_groups) if each is group)
    return optimizer


class MemberStates(MutableMapping[Any, Any]):
    """The state of each parameter, as the optimizer that updates it holds it."""

    def __init__(self, members: Mapping[str, Optimizer], owners: Mapping[Tensor, str]) -> None:
        self._members, self._owners = members, owners

    def _state(self, parameter: Any) -> Any:
        return self._members[self._owners[parameter]].state

    def __getitem__(self, parameter: Any) -> Any:
        return self._state(parameter)[parameter]

    def __setitem__(self, parameter: Any, values: Any) -> None:
        self._state(parameter)[parameter] = values

    def __delitem__(self, parameter: Any) -> None:
        del self._state(parameter)[parameter]

    def __contains__(self, parameter: Any) -> bool:
        return parameter in self._owners and parameter in self._state(parameter)

    def __iter__(self) -> Iterator[Any]:
        return (key for member in self._members.values() for key in member.state)

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members.values())
