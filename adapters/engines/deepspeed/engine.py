"""The adapter of the Parallelism port over a DeepSpeed engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import field, frozen

from hexloop.adapters.engines.deepspeed.launcher import begin
from hexloop.adapters.engines.deepspeed.learner import DeepSpeedLearner
from hexloop.adapters.engines.deepspeed.partitions import (
    ZeroLayout,
    ZeroPartitions,
    refuse_unknown_engine,
    wraps_optimizer,
)
from hexloop.adapters.engines.deepspeed.state import ZeroModelState, ZeroOptimizerState
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.domain.errors import CollectiveError
from hexloop.ports.parallelism import ParallelismCapabilities
from hexloop.ports.state import Exportable
from hexloop.ports.trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor


OPERATION = "gradient_allreduce_op"
"""The entry of its configuration that says which of the two it does, in the versions that know both."""

CHOSEN = (OPERATION, "prescale_gradients", "gradient_predivide_factor")
"""Entries by which somebody has chosen the scale of gradients already."""

NARROW = ("fp16", "amp", "torch_autocast")
"""Sections of formats in which a gradient that is smaller by the number of processes may be 0."""

WAYS = ("reduce_scatter", "use_multi_rank_bucket_allreduce")
"""Entries of ZeRO's section by which somebody has chosen how gradients travel."""


def adding_up(config: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """`config` for an engine that adds up, as what each process has is its share of a sum; None where it cannot.

    ZeRO 3, ZenFlow and DeepCompile only take means. Experts' gradients, whose parameters DeepSpeed marks with
    `allreduce = False`, meet in some of the processes alone. Under ZeRO 1 and 2 everything is reduced where it lies: by
    itself DeepSpeed copies it first, reduces all of the copy, too, and copies each process's own part back.
    """
    zero = _section(config, "zero_optimization")
    stage = zero.get("stage", 0)
    if (
        stage == 3
        or "zenflow" in zero
        or any(name in config for name in CHOSEN)
        or any(_section(config, name).get("enabled", False) for name in NARROW)
        or _section(config, "compile").get("deepcompile", False)
        or any(not getattr(parameter, "allreduce", True) for parameter in model.parameters())
    ):
        return None
    adding = {**config, OPERATION: "sum"}
    if stage > 0 and not any(name in zero for name in WAYS):
        adding["zero_optimization"] = {**zero, "reduce_scatter": False}
    return adding


def left_in_place(config: Mapping[str, Any], device_type: str) -> dict[str, Any]:
    """`config` for an engine that takes the gradients of ZeRO 3 from where the backward pass left them.

    By itself DeepSpeed copies each into a buffer before it sorts them by process in another. That keeps a device's
    memory from falling to pieces; a processor's does not.
    """
    zero = _section(config, "zero_optimization")
    kept = any(name in zero for name in ("contiguous_gradients", "reduce_scatter", "zenflow"))
    if zero.get("stage", 0) != 3 or device_type != "cpu" or kept:
        return dict(config)
    return {**config, "zero_optimization": {**zero, "contiguous_gradients": False}}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


@frozen
class DeepSpeed:
    """Answers the Parallelism port by an engine of DeepSpeed, and Sharding where ZeRO 3 spreads the weights.

    Each process computes its share of the window's loss. The engine adds the gradients up; where it can only take their
    mean, the shares are multiplied by the number of processes first.

    device: where the module lies. stage: of ZeRO. configuration: from a model to what the engine is configured by; its
    section "optimizer", if any, is what the engine makes its optimizer of.
    """

    device: torch.device
    world_size: int
    stage: int
    configuration: Callable[[Any], Mapping[str, Any]]
    local_rank: int = 0
    _engine: list[Any] = field(factory=list, init=False)
    _adds: list[bool] = field(factory=list, init=False)
    _told_last: list[bool] = field(factory=list, init=False)

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """Weights are spread from stage 3 on; an engine compiles by itself, if at all."""
        return ParallelismCapabilities(
            "deepspeed", processes=True, sharded=self.stage == 3, compiles=False, owns_update=True, owns_state=True
        )

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """An engine around the module, and the optimizer within it, over what the engine trains instead of weights.

        Raises CollectiveError where the engine does not see the processes of the run.
        """
        begin(self.device, self.local_rank)
        import deepspeed
        from deepspeed.runtime import constants

        config = left_in_place(self.configuration(model), self.device.type)
        adding = adding_up(config, model) if hasattr(constants, "GRADIENT_ALLREDUCE_OP") else None
        logging.getLogger("DeepSpeed").setLevel(max(logging.WARNING, logging.getLogger("hexloop").level))
        for engine in self._engine:
            engine.destroy()
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=None if "optimizer" in config else make_optimizer(model),
            model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
            config=adding or config,
        )
        if engine.world_size != self.world_size:
            raise CollectiveError(
                f"The run has {self.world_size} processes, but DeepSpeed's engine sees {engine.world_size}; leave it "
                "to hexloop to initialise torch.distributed, and start the script with one launcher."
            )
        self._engine[:], self._adds[:], self._told_last[:] = [engine], [adding is not None], []
        if (dtype := _half_of(engine)) is not None:
            engine.module.register_forward_pre_hook(_casting(dtype), with_kwargs=True, prepend=True)
        return engine, engine.basic_optimizer

    def synchronise(self, last_of_window: bool) -> None:
        """Tell the engine whether the coming micro-batch is the last before a step."""
        if self._told_last != [last_of_window]:  # the engine keeps it, and takes its time to hear it
            for engine in self._engine:
                engine.set_gradient_accumulation_boundary(last_of_window)
            self._told_last[:] = [last_of_window]

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the sum of all processes' shares, or of the mean of world_size times these."""
        (engine,), (adds,) = self._engine, self._adds
        engine.backward(loss if adds else loss * self.world_size, scale_wrt_gas=False)

    def unwrap(self, model: Any) -> Any:
        """The module within."""
        return model.module if any(model is engine for engine in self._engine) else model

    def spreads(self, model: Any) -> bool:
        """Whether it is the module that ZeRO 3 has spread."""
        return self.stage == 3 and any(engine.module is model for engine in self._engine)

    @property
    def layout(self) -> ZeroLayout:
        """Where its weights lie."""
        return ZeroLayout(dist.get_rank(), self.world_size)

    def learner(
        self,
        model: Any,
        trainable: Trainable[Any, Tensor],
        before_optimizer_step: Callable[[], None],
        after_optimizer_step: Callable[[], None],
    ) -> DeepSpeedLearner:
        """Return the learner over the engine `model`."""
        return DeepSpeedLearner(
            model, trainable, self.synchronise, self.backward, before_optimizer_step, after_optimizer_step
        )

    def model_state(self, model: Any, writers: int) -> ZeroModelState:
        """Return what exports and loads the weights of the engine `model`, and their full-precision masters."""
        partitions = ZeroPartitions(model) if wraps_optimizer(model) else None
        return ZeroModelState(model, self._layout_of(model), partitions, writers)

    def optimizer_state(self, model: Any, optimizer: Any) -> Exportable:
        """Return what exports and loads the moments. Raises CheckpointError for an unknown optimizer of DeepSpeed."""
        if not wraps_optimizer(model):
            return OptimizerState(model.module, optimizer, self._layout_of(model))
        refuse_unknown_engine(model)
        scaler = getattr(model.optimizer, "loss_scaler", model.optimizer) if model.fp16_enabled() else None
        return ZeroOptimizerState(model.module, ZeroPartitions(model), scaler)

    def group_sizes(self, model: Any, optimizer: Any) -> list[int]:
        """Return how many parameters of the module each group of the optimizer trains."""
        if not wraps_optimizer(model):
            return [len(group["params"]) for group in optimizer.param_groups]
        return [len(group) for group in ZeroPartitions(model).groups]

    def spreads_optimizer(self, model: Any) -> bool:
        """Return whether ZeRO has cut the moments up between the processes."""
        return wraps_optimizer(model) and ZeroPartitions(model).is_spread

    def _layout_of(self, model: Any) -> TorchLayout:
        return self.layout if self.spreads(model.module) else WHOLE


def _half_of(engine: Any) -> torch.dtype | None:
    """The half format that the engine keeps its weights in."""
    if engine.bfloat16_enabled():
        return torch.bfloat16
    return torch.float16 if engine.fp16_enabled() else None


def _casting(dtype: torch.dtype) -> Callable[..., Any]:
    """What puts a module's floating-point inputs into the format of its weights before each forward pass."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, Mapping):
            return {name: cast(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(map(cast, value))
        return value

    def before(_module: Any, args: Any, kwargs: Any) -> Any:
        return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}

    return before
