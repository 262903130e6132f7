"""Where DeepSpeed keeps weights and moments: how ZeRO partitions the parameters of a model over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from hexloop.adapters.trainable.torch.layouts import ModuleLayout, communication_device, norm_over
from hexloop.domain.errors import CheckpointError
from hexloop.ports.mesh import Sharded, Spread, flat_mesh, held_in_runs


@frozen
class Fragment:
    """The elements of a parameter that this rank's optimizer trains, which may be none.

    They are the `length` elements from `offset` in the flat tensor number `flat`, and those from `start` in the
    parameter.
    """

    flat: int
    offset: int
    start: int
    length: int


class ZeroPartitions:
    """The flat tensors that an engine's optimizer trains, and where each parameter of the model is in them.

    ZeRO flattens the parameters of a group, partitions them over the ranks, and lets the optimizer train the flat
    pieces in full precision ("master weights"); its moments have the same layout. With a half format and no ZeRO every
    rank has all master weights.

    groups: the model's parameters, by the optimizer's groups and in their order. fragments: of each trained parameter,
    by its id. is_spread: whether each rank has only a part of the moments.
    """

    def __init__(self, engine: Any) -> None:
        self.optimizer = engine.basic_optimizer
        self._engine = engine
        self._zero = engine.optimizer
        self.fragments: dict[int, Fragment] = {}
        self._spreads: dict[int, Spread] = {}
        self.mesh = flat_mesh(dist.get_rank(), dist.get_world_size(), "shard")
        self.is_spread = self.mesh.size > 1
        self.groups: list[list[Tensor]] = []
        if engine.zero_optimization_partition_weights():
            self._flat = self._zero.fp32_partitioned_groups_flat
            self._read_stage_3()
        elif hasattr(self._zero, "single_partition_of_fp32_groups"):  # stages 1 and 2
            self._flat = self._zero.single_partition_of_fp32_groups
            self._read_fragments(self._zero.bit16_groups)
        elif hasattr(self._zero, "fp32_groups_flat_partition"):  # bfloat16 with gradients in full precision, stage 1
            self._flat = self._zero.fp32_groups_flat_partition
            self._read_fragments(self._zero.bf16_groups)
        else:
            self.is_spread = False
            self._read_unpartitioned()

    @property
    def count(self) -> int:
        """The number of flat tensors."""
        return len(self._flat)

    def state(self, flat: int) -> dict[str, Any]:
        """Return the optimizer's state of a flat tensor."""
        state: dict[str, Any] = self.optimizer.state[self._flat[flat]]
        return state

    def master(self, flat: int) -> Tensor:
        """Return a flat tensor: the master weights."""
        master: Tensor = self._flat[flat]
        return master.detach()

    def is_moment(self, flat: int, value: object) -> bool:
        """Return whether an entry of the optimizer's state has an element for each of the flat tensor's."""
        return isinstance(value, Tensor) and value.shape == self._flat[flat].shape

    @contextmanager
    def loaded(self, flat: int | None) -> Iterator[bool]:
        """Keep a flat tensor and its moments in memory in this context; yield whether they are offloaded to disk."""
        swapped = (
            flat is not None
            and self._engine.zero_optimization_partition_weights()
            and self._zero._swappable_optimizer_subgroup(flat)
        )
        if swapped:
            self._zero._optimizer_states_and_gradient_swap_in(flat)
        try:
            yield swapped
        finally:
            if swapped:
                self._zero._optimizer_states_and_gradient_swap_out(flat)

    def spread(self, parameter: Tensor) -> Spread | None:
        """Return how a parameter's moments are partitioned, None if they are not. The first call is collective."""
        if not self.is_spread:
            return None
        if not self._spreads:
            self._exchange_spreads()
        return self._spreads[id(parameter)]

    def view(self, parameter: Tensor, flat: Tensor) -> Tensor:
        """Return this rank's elements of a parameter, as a view of the flat tensor or of one of its moments."""
        fragment = self.fragments[id(parameter)]
        return flat.detach().view(-1).narrow(0, fragment.offset, fragment.length)

    def update_master(self, parameter: Tensor, own: Tensor) -> None:
        """Set the master weights to `own`, this rank's elements of a weight, unless they already round to it."""
        fragment = self.fragments[id(parameter)]
        if fragment.length == 0:
            return
        with self.loaded(fragment.flat):
            master = self.view(parameter, self.master(fragment.flat))
            own = own.to(master.device)
            master.copy_(torch.where(master.to(own.dtype) == own, master, own.to(master.dtype)))

    def _exchange_spreads(self) -> None:
        """Gather the ranks' fragments of each parameter."""
        parameters = list(chain.from_iterable(self.groups))
        fragments = [self.fragments[id(parameter)] for parameter in parameters]
        own = torch.tensor([[each.start, each.length] for each in fragments], device=communication_device())
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        for parameter, rows in zip(parameters, torch.stack(gathered, 1).tolist(), strict=True):
            lengths = [length for _, length in rows]
            self._spreads[id(parameter)] = held_in_runs(tuple(whole_shape(parameter)), self.mesh, "shard", lengths)

    def _read_stage_3(self) -> None:
        """Stage 3: each rank has an equal part of every parameter, padded at the end."""
        zero = self._zero
        by_group: dict[int, list[Tensor]] = {}
        for flat, parameters in enumerate(zero.fp16_groups):
            by_group.setdefault(zero.sub_group_to_group_id[flat], []).extend(parameters)
            for parameter in parameters:
                _, offset, size = zero.grad_position[zero.get_param_id(parameter)]
                start = min(size * dist.get_rank(), parameter.ds_numel)
                length = min(size, parameter.ds_numel - start)
                self.fragments[id(parameter)] = Fragment(flat, offset, start, length)
        self.groups = [by_group[group] for group in sorted(by_group)]

    def _read_fragments(self, groups: list[list[Any]]) -> None:
        """Stages 1 and 2: each rank has an equal part of every group's concatenated parameters."""
        self.groups = [list(group) for group in groups]
        for flat, group in enumerate(self.groups):
            for parameter in group:
                fragment, mapping = Fragment(flat, 0, 0, 0), getattr(parameter, "_hp_mapping", None)
                if mapping is not None:
                    own, start = mapping.hp_fragment_address, mapping.lp_fragment_address.start
                    fragment = Fragment(flat, own.start, start, own.numel)
                self.fragments[id(parameter)] = fragment

    def _read_unpartitioned(self) -> None:
        """A half format without ZeRO: master weights for each parameter, or flat ones for a group."""
        self.groups = [list(group) for group in self._zero.fp16_groups]
        self._flat = []
        flat_groups = getattr(self._zero, "fp32_groups_flat", None)
        for number, group in enumerate(self.groups):
            offset = 0
            for index, parameter in enumerate(group):
                if flat_groups is None:
                    self._flat.append(self._zero.fp32_groups[number][index])
                flat = number if flat_groups is not None else len(self._flat) - 1
                self.fragments[id(parameter)] = Fragment(flat, offset, 0, parameter.numel())
                offset += parameter.numel() if flat_groups is not None else 0
        if flat_groups is not None:
            self._flat = list(flat_groups)


def whole_shape(tensor: Tensor) -> torch.Size:
    """Return the shape of the whole tensor, whether it is partitioned or not."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


def is_on_disk(parameter: Tensor) -> bool:
    """Return whether this rank's part of a parameter is offloaded to disk at the moment."""
    partition = getattr(parameter, "ds_tensor", None)
    return partition is not None and bool(partition.status.name == "NOT_AVAILABLE")


def wraps_optimizer(engine: Any) -> bool:
    """Return whether the engine's optimizer trains tensors other than the model's own parameters."""
    return engine.optimizer is not engine.basic_optimizer


KNOWN_OPTIMIZERS = (
    "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer", "FP16_UnfusedOptimizer",
    "FP16_Optimizer",
)  # fmt: skip
"""The optimizers of DeepSpeed whose state hexloop knows."""


def refuse_unknown_optimizer(engine: Any) -> None:
    """Raise CheckpointError for an optimizer of DeepSpeed whose state hexloop does not know."""
    name = type(engine.optimizer).__name__
    if name not in KNOWN_OPTIMIZERS:
        raise CheckpointError(
            f"DeepSpeed's configuration trains with its {name}, whose state hexloop cannot save; change the "
            "configuration, or set save_strategy='no'."
        )


@frozen
class ZeroLayout(ModuleLayout):
    """Layout of a module whose parameters ZeRO 3 partitions: each rank has an equal run of every parameter.

    The parameters know their partitions.
    """

    whole = False

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return equal runs, of which the last ones are shorter or empty where the partition is padding."""
        if not hasattr(tensor, "ds_id"):
            return None
        partitioned: Any = tensor
        size, count = partitioned.ds_tensor.ds_numel, partitioned.ds_numel
        bounds = tuple(min(number * size, count) for number in range(self.mesh.size + 1))
        return Spread(tuple(partitioned.ds_shape), self.mesh, (Sharded("shard", 0, bounds),), flat=True)

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's run without padding; a copy if it is offloaded to disk."""
        partitioned: Any = tensor
        partition = partitioned.ds_tensor
        if is_on_disk(tensor):
            read = torch.empty(partition.ds_numel, dtype=partition.dtype)
            partitioned.nvme_swapper.swap_into_buffer(partitioned, read)
            partition = read
        spread = self.spread(tensor, tensor)
        assert spread is not None
        own: Tensor = partition.detach().view(-1).narrow(0, 0, spread.own.size)
        return own

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return this rank's run on the device of the parameter's partition."""
        partitioned: Any = parameter
        return local.to(partitioned.ds_tensor.device)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm over all ranks' runs, from the norm of this rank's."""
        return norm_over(own)
