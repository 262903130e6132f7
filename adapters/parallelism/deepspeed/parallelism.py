"""DeepSpeed: the optimizer's state, the gradients and the weights are spread over the processes, stage by stage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import field, frozen

from hexloop.adapters.parallelism.deepspeed.gradients import adding_up, left_in_place
from hexloop.adapters.parallelism.deepspeed.layout import ZeroLayout
from hexloop.adapters.parallelism.deepspeed.surroundings import begin
from hexloop.domain.errors import CollectiveError
from hexloop.ports.parallelism import ParallelismCapabilities

if TYPE_CHECKING:
    from torch import Tensor


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
            "deepspeed", processes=True, sharded=self.stage == 3, compiles=False, owns_update=True
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
