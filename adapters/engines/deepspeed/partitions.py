"""Where the optimizer of a DeepSpeed engine keeps its numbers for each parameter of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.layouts import communicating
from hexloop.domain.errors import CheckpointError
from hexloop.ports.parallelism import Spread


@frozen
class Place:
    """The stretch of a parameter whose numbers this process keeps.

    They are the `length` elements from `at` on of the flat tensor number `holder`, and those from `start` on of the
    parameter. `length` may be 0.
    """

    holder: int
    at: int
    start: int
    length: int


class ZeroPartitions:
    """The flat tensors that an engine's optimizer really trains, and where in them each parameter of the model lies.

    ZeRO flattens the parameters of a group, cuts them up between the processes, and lets the optimizer train the flat
    pieces in full precision ("masters"); its moments lie alongside. Under a half format without ZeRO every process has
    all masters.

    groups: the model's parameters, by the optimizer's groups, in their order.
    """

    def __init__(self, engine: Any) -> None:
        self.optimizer = engine.basic_optimizer
        self._engine = engine
        self._zero = engine.optimizer
        self._places: dict[int, Place] = {}
        self._spreads: dict[int, Spread] = {}
        self._spread = dist.get_world_size() > 1
        self.groups: list[list[Tensor]] = []
        if engine.zero_optimization_partition_weights():
            self._holders = self._zero.fp32_partitioned_groups_flat
            self._place_by_weights()
        elif hasattr(self._zero, "single_partition_of_fp32_groups"):  # stages 1 and 2
            self._holders = self._zero.single_partition_of_fp32_groups
            self._place_by_fragments(self._zero.bit16_groups)
        elif hasattr(self._zero, "fp32_groups_flat_partition"):  # bfloat16 with gradients in full precision, stage 1
            self._holders = self._zero.fp32_groups_flat_partition
            self._place_by_fragments(self._zero.bf16_groups)
        else:
            self._spread = False
            self._place_whole()

    def place(self, parameter: Tensor) -> Place | None:
        """Where a parameter's numbers are; None where it is not trained."""
        return self._places.get(id(parameter))

    def state(self, holder: int) -> dict[str, Any]:
        """What the optimizer keeps of a flat tensor."""
        state: dict[str, Any] = self.optimizer.state[self._holders[holder]]
        return state

    def master(self, holder: int) -> Tensor:
        """A flat tensor."""
        flat: Tensor = self._holders[holder]
        return flat.detach()

    def is_moment(self, holder: int, value: object) -> bool:
        """Whether what the optimizer keeps has a number for each of the flat tensor's."""
        return isinstance(value, Tensor) and value.shape == self._holders[holder].shape

    @contextmanager
    def at_hand(self, holder: int | None) -> Iterator[None]:
        """Within, a flat tensor and its moments are in memory, from wherever they are offloaded to."""
        swapped = (
            holder is not None
            and self._engine.zero_optimization_partition_weights()
            and self._zero._swappable_optimizer_subgroup(holder)
        )
        if swapped:
            self._zero._optimizer_states_and_gradient_swap_in(holder)
        try:
            yield
        finally:
            if swapped:
                self._zero._optimizer_states_and_gradient_swap_out(holder)

    @property
    def is_spread(self) -> bool:
        """Whether each process has a part of the numbers only."""
        return self._spread

    def spread(self, parameter: Tensor) -> Spread | None:
        """How a parameter's numbers lie, None where every process has all of them. Collective at its first call."""
        if not self._spread:
            return None
        if not self._spreads:
            self._look()
        return self._spreads[id(parameter)]

    def stretch(self, parameter: Tensor, flat: Tensor) -> Tensor:
        """This process's numbers of a parameter in `flat`; writing to them writes there."""
        place = self._places[id(parameter)]
        return flat.detach().view(-1).narrow(0, place.at, place.length)

    def follow(self, parameter: Tensor, own: Tensor) -> None:
        """Let the master be `own`, this process's stretch of a weight, where it does not round to that already."""
        place = self._places[id(parameter)]
        if place.length == 0:
            return
        with self.at_hand(place.holder):
            master = self.stretch(parameter, self.master(place.holder))
            own = own.to(master.device)
            master.copy_(torch.where(master.to(own.dtype) == own, master, own.to(master.dtype)))

    def _look(self) -> None:
        """Find out which stretch of each parameter the processes have."""
        parameters = [parameter for group in self.groups for parameter in group]
        places = [self._places[id(parameter)] for parameter in parameters]
        own = torch.tensor([[place.start, place.length] for place in places], device=communicating())
        of_all = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all, own)
        for parameter, runs in zip(parameters, torch.stack(of_all, 1).tolist(), strict=True):
            begins = tuple((begin, length) for begin, length in runs)
            self._spreads[id(parameter)] = Spread(tuple(whole_shape(parameter)), begins, begins[dist.get_rank()])

    def _place_by_weights(self) -> None:
        """Stage 3: each process has an equal part of every parameter, the last ones filled up."""
        zero = self._zero
        by_group: dict[int, list[Tensor]] = {}
        for holder, parameters in enumerate(zero.fp16_groups):
            by_group.setdefault(zero.sub_group_to_group_id[holder], []).extend(parameters)
            for parameter in parameters:
                _, at, size = zero.grad_position[zero.get_param_id(parameter)]
                start = min(size * dist.get_rank(), parameter.ds_numel)
                length = min(size, parameter.ds_numel - start)
                self._places[id(parameter)] = Place(holder, at, start, length)
        self.groups = [by_group[group] for group in sorted(by_group)]

    def _place_by_fragments(self, groups: list[list[Any]]) -> None:
        """Stages 1 and 2: each process has an equal part of every group laid end to end."""
        self.groups = [list(group) for group in groups]
        for holder, group in enumerate(self.groups):
            for parameter in group:
                found = getattr(parameter, "_hp_mapping", None)
                self._places[id(parameter)] = (
                    Place(holder, 0, 0, 0)
                    if found is None
                    else Place(
                        holder,
                        found.hp_fragment_address.start,
                        found.lp_fragment_address.start,
                        found.hp_fragment_address.numel,
                    )
                )

    def _place_whole(self) -> None:
        """A half format without ZeRO: a master for each parameter, or a flat one for a group."""
        self.groups = [list(group) for group in self._zero.fp16_groups]
        self._holders = []
        flat = getattr(self._zero, "fp32_groups_flat", None)
        for number, group in enumerate(self.groups):
            at = 0
            for index, parameter in enumerate(group):
                if flat is None:
                    self._holders.append(self._zero.fp32_groups[number][index])
                self._places[id(parameter)] = Place(
                    number if flat is not None else len(self._holders) - 1, at, 0, parameter.numel()
                )
                at += parameter.numel() if flat is not None else 0
        if flat is not None:
            self._holders = list(flat)


def whole_shape(tensor: Tensor) -> torch.Size:
    """The shape of a tensor, as it is where nothing is spread."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


def wraps_optimizer(engine: Any) -> bool:
    """Return whether the engine's optimizer trains something else than the model's own parameters."""
    return engine.optimizer is not engine.basic_optimizer


def refuse_unknown_engine(engine: Any) -> None:
    """Raise CheckpointError for an optimizer of DeepSpeed whose state hexloop does not know."""
    known = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer", "FP16_UnfusedOptimizer")
    name = type(engine.optimizer).__name__
    if wraps_optimizer(engine) and name not in (*known, "FP16_Optimizer"):
        raise CheckpointError(
            f"You chose a configuration of DeepSpeed that trains with its {name}, whose state hexloop cannot save; "
            "choose another, or save_strategy='no'."
        )


@frozen
class ZeroLayout:
    """Answers `hexloop.ports.parallelism.Layout` for a module whose parameters DeepSpeed has partitioned."""

    rank: int
    world_size: int

    uneven = False

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """The state dict, whose parameters know their partitions."""
        return model.state_dict(keep_vars=True)

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """As the model names them."""
        return dict(model.named_parameters())

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Equal runs, of which the last ones reach beyond the end of the parameter, or lie there."""
        if not hasattr(tensor, "ds_id"):
            return None
        of: Any = tensor
        size, count = of.ds_tensor.ds_numel, of.ds_numel
        bounds = [min(number * size, count) for number in range(self.world_size + 1)]
        runs = tuple((bounds[rank], bounds[rank + 1] - bounds[rank]) for rank in range(self.world_size))
        return Spread(tuple(of.ds_shape), runs, runs[self.rank])

    def local(self, tensor: Tensor) -> Tensor:
        """The process's run, without what fills it up; a copy of it where it lies on a disk."""
        of: Any = tensor
        partition = of.ds_tensor
        if partition.status.name == "NOT_AVAILABLE":
            read = torch.empty(partition.ds_numel, dtype=partition.dtype)
            of.nvme_swapper.swap_into_buffer(of, read)
            partition = read
        spread = self.spread(tensor, tensor)
        assert spread is not None
        own: Tensor = partition.detach().view(-1).narrow(0, 0, spread.own[1])
        return own

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """A moment of a process's run is a run of the moment."""
        of: Any = parameter
        return local.to(of.ds_tensor.device)

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all runs, from that of this process's."""
        squared = own.to(torch.float32).square()
        dist.all_reduce(squared)
        return squared.sqrt()
