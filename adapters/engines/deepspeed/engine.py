"""The DeepSpeed engine: the adapter of the Parallelism port, and what the app asks of it around a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, SupportsFloat

import torch
import torch.distributed as dist
from attrs import define, field, frozen
from torch import Tensor

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.deepspeed.configuration import (
    DeepSpeedConfiguration,
    RunLength,
    deepspeed_configuration,
    with_gradient_sum,
    with_gradients_in_place,
)
from hexloop.adapters.engines.deepspeed.launcher import initialize
from hexloop.adapters.engines.deepspeed.partitions import (
    ZeroLayout,
    ZeroPartitions,
    is_on_disk,
    refuse_unknown_optimizer,
    wraps_optimizer,
)
from hexloop.adapters.engines.deepspeed.state import ZeroModelState, ZeroOptimizerState, ZeroOwnState, ZeroOwnWeights
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.adapters.trainable.torch.quantized import refuse_divided_quantization
from hexloop.domain.errors import CollectiveError, ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine, RunFacts
from hexloop.ports.learner import Trainable
from hexloop.ports.mesh import flat_mesh
from hexloop.ports.parallelism import ParallelismCapabilities
from hexloop.ports.state import Exportable


@frozen
class DeepSpeed:
    """Parallelism adapter over a DeepSpeed engine, with Sharding if ZeRO 3 partitions the weights.

    Each rank computes its share of the window's loss. The engine sums the gradients; if it can only average them, the
    shares are multiplied by the number of ranks first.

    device: where the module is. stage: of ZeRO. configuration: returns the engine's configuration for a model; if it
    has a section "optimizer", the engine creates its optimizer from that.
    """

    device: torch.device
    world_size: int
    stage: int
    configuration: Callable[[Any], Mapping[str, Any]]
    local_rank: int = 0
    _engine: list[Any] = field(factory=list, init=False)
    _sums_gradients: list[bool] = field(factory=list, init=False)
    _boundary: list[bool] = field(factory=list, init=False)

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """Weights are sharded from stage 3 on. The engine compiles the model itself, if configured to."""
        return ParallelismCapabilities(
            "deepspeed", processes=True, sharded=self.stage == 3, compiles=False, owns_update=True, owns_state=True
        )

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return an engine around the module, and the optimizer inside it, which trains the engine's partitions.

        Raises CollectiveError if the engine does not see the processes of the run, and ConfigurationError if it would
        divide quantized weights.
        """
        if self.stage == 3:
            refuse_divided_quantization(model, "ZeRO 3")
        initialize(self.device, self.local_rank)
        import deepspeed
        from deepspeed.runtime import constants

        config = with_gradients_in_place(self.configuration(model), self.device.type)
        summing = with_gradient_sum(config, model) if hasattr(constants, "GRADIENT_ALLREDUCE_OP") else None
        logging.getLogger("DeepSpeed").setLevel(max(logging.WARNING, logging.getLogger("hexloop").level))
        for engine in self._engine:
            engine.destroy()
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=None if "optimizer" in config else make_optimizer(model),
            model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
            config=summing or config,
        )
        if engine.world_size != self.world_size:
            raise CollectiveError(
                f"The run has {self.world_size} processes, but DeepSpeed's engine sees {engine.world_size}; leave it "
                "to hexloop to initialize torch.distributed, and start the script with one launcher."
            )
        self._engine[:], self._sums_gradients[:], self._boundary[:] = [engine], [summing is not None], []
        if (dtype := _half_dtype(engine)) is not None:
            engine.module.register_forward_pre_hook(_cast_inputs(dtype), with_kwargs=True, prepend=True)
        return engine, engine.basic_optimizer

    def synchronise(self, last_of_window: bool) -> None:
        """Set whether the coming micro-batch is the last one before a step."""
        if self._boundary != [last_of_window]:  # setting it takes time, and it stays set
            for engine in self._engine:
                engine.set_gradient_accumulation_boundary(last_of_window)
            self._boundary[:] = [last_of_window]

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the sum over the ranks, or of the mean of `world_size` times their shares."""
        (engine,), (sums_gradients,) = self._engine, self._sums_gradients
        engine.backward(loss if sums_gradients else loss * self.world_size, scale_wrt_gas=False)

    def unwrap(self, model: Any) -> Any:
        """Return the module inside the engine."""
        return model.module if any(model is engine for engine in self._engine) else model

    def spreads(self, model: Any) -> bool:
        """Return whether it is the module that ZeRO 3 has partitioned."""
        return self.stage == 3 and any(engine.module is model for engine in self._engine)

    @property
    def layout(self) -> ZeroLayout:
        """The layout of weights that ZeRO 3 partitions."""
        return ZeroLayout(flat_mesh(dist.get_rank(), self.world_size, "shard"))

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

    def model_state(self, model: Any, writers: int, kept: Callable[[str], bool] | None = None) -> ZeroModelState:
        """Return what exports and loads the weights of the engine `model`; full-precision copies are updated too."""
        partitions = ZeroPartitions(model) if wraps_optimizer(model) else None
        return ZeroModelState(model, self._layout_of(model), partitions, writers, kept)

    def optimizer_state(self, model: Any, optimizer: Any) -> Exportable:
        """Return what exports and loads the moments. Raises CheckpointError for an unknown optimizer of DeepSpeed."""
        if not wraps_optimizer(model):
            return OptimizerState(model.module, optimizer, self._layout_of(model))
        refuse_unknown_optimizer(model)
        return ZeroOptimizerState(model.module, ZeroPartitions(model), _scaler(model))

    def kept_state(self, model: Any, optimizer: Any) -> Mapping[str, Exportable]:
        """Return what exports and loads this rank's weights and moments as they lie in its memory.

        Raises ConfigurationError if weights are offloaded to disk, and CheckpointError for an unknown optimizer.
        """
        if not wraps_optimizer(model):
            return {"model": self.model_state(model, 1), "optimizer": self.optimizer_state(model, optimizer)}
        refuse_unknown_optimizer(model)
        layout = self._layout_of(model)
        if any(is_on_disk(each) for each in layout.parameters(model.module).values()):
            raise ConfigurationError(
                "on_nonfinite or on_spike is 'skip' or 'rollback', and DeepSpeed's configuration offloads the weights "
                "to disk, of which a run keeps no copy to return to; set offload_param.device to 'cpu', or choose "
                "'stop' or 'warn'."
            )
        return {
            "model": ZeroOwnWeights(model, layout),
            "optimizer": ZeroOwnState(ZeroPartitions(model), _scaler(model)),
        }

    def group_sizes(self, model: Any, optimizer: Any) -> list[int]:
        """Return how many parameters of the module each group of the optimizer trains."""
        if not wraps_optimizer(model):
            return [len(group["params"]) for group in optimizer.param_groups]
        return [len(group) for group in ZeroPartitions(model).groups]

    def spreads_optimizer(self, model: Any) -> bool:
        """Return whether ZeRO has partitioned the moments."""
        return wraps_optimizer(model) and ZeroPartitions(model).is_spread

    def _layout_of(self, model: Any) -> TorchLayout:
        return self.layout if self.spreads(model.module) else WHOLE


class SteppingEngine(Protocol):
    """The part of DeepSpeedEngine that the learner uses."""

    @property
    def optimizer(self) -> object:
        """ZeRO's or a half format's optimizer around `basic_optimizer`, else `basic_optimizer` itself."""

    @property
    def basic_optimizer(self) -> object:
        """The optimizer that was passed in, or that the configuration defines."""

    def step(self) -> None:
        """Clip the gradients and step."""

    def was_step_applied(self) -> bool:
        """Return whether the last step changed the weights."""

    def get_global_grad_norm(self) -> Any:
        """Return the norm of all gradients before clipping, as of the last step."""


@define(eq=False, slots=False)
class DeepSpeedLearner:
    """Learner adapter over a DeepSpeed engine.

    engine: created by `deepspeed.initialize`; `gradient_clipping` in its configuration is the `max_norm` of `update`.
    trainable: counts items, and computes the loss by calling the engine. Its `clip` is used if nothing is partitioned
        or scaled, because the engine reports no norm then.
    synchronise, backward: the methods of the Parallelism port, over the same engine.
    before_optimizer_step, after_optimizer_step: called around each optimizer step.
    """

    _engine: SteppingEngine
    _trainable: Trainable[Any, Tensor]
    _synchronise: Callable[[bool], None]
    _backward: Callable[[Tensor], None]
    _before_optimizer_step: Callable[[], None] = lambda: None
    _after_optimizer_step: Callable[[], None] = lambda: None

    def __attrs_post_init__(self) -> None:
        self.count_items = self._trainable.count_items  # a forwarding method would cost one more call per step
        self._reports_norm = self._engine.optimizer is not self._engine.basic_optimizer

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Tensor:
        """Run forward and backward of one micro-batch; see `Learner.micro_step`."""
        self._synchronise(last_of_window)
        loss = self._trainable.loss(batch, window_items)
        self._backward(loss)
        return self._trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip and step; see `Learner.update`."""
        norm: SupportsFloat | None = None if self._reports_norm else self._trainable.clip(max_norm)
        self._before_optimizer_step()
        self._engine.step()
        self._after_optimizer_step()
        if self._reports_norm:
            norm = self._engine.get_global_grad_norm()
        return norm, self._engine.was_step_applied()


def _scaler(engine: Any) -> Any:
    """Return the engine's loss scaler; None if it scales no loss."""
    return getattr(engine.optimizer, "loss_scaler", engine.optimizer) if engine.fp16_enabled() else None


def _half_dtype(engine: Any) -> torch.dtype | None:
    """Return the half format that the engine keeps the weights in."""
    return torch.bfloat16 if engine.bfloat16_enabled() else torch.float16 if engine.fp16_enabled() else None


def _cast_inputs(dtype: torch.dtype) -> Callable[..., Any]:
    """Return a forward pre-hook that casts a module's floating-point inputs to the dtype of its weights."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, Mapping):
            return {name: cast(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(map(cast, value))
        return value

    def cast_all(_module: Any, args: Any, kwargs: Any) -> Any:
        return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}

    return cast_all


def make_deepspeed(args: EngineArguments, device: Device) -> DeepSpeed:
    """Return the adapter, whose engine is configured by the arguments."""
    configuration = _configuration(args)

    def for_model(model: Any) -> dict[str, Any]:
        values, problems = configuration.for_model(model)
        if problems:
            raise ConfigurationError(problems)
        return values

    return DeepSpeed(
        torch.device(device.name), args.world_size, configuration.stage, for_model, args.local_process_index
    )


def check(args: EngineArguments, facts: RunFacts) -> Sequence[str]:
    """Return what of the configuration does not fit the model, the length of the run or the Trainer's arguments."""
    configuration = _configuration(args)
    problems = [*configuration.problems, *configuration.for_model(facts.model)[1]]
    problems += configuration.for_length(_length(args, facts.total_steps))[1]
    another = "DeepSpeed's configuration has {}, and the Trainer was given another; leave one of them out."
    if configuration.values.get("optimizer") is not None and not facts.standard_optimizer:
        problems.append(another.format("an optimizer"))
    if configuration.scheduler is not None and not facts.standard_schedule:
        problems.append(another.format("a scheduler"))
    return problems


def precision(args: EngineArguments) -> str:
    """Return the number format, which the engine applies itself: it keeps half weights and scales losses."""
    name = _configuration(args).half or args.mixed_precision
    return name if name != "no" else "tf32" if args.tf32 else "fp32"


def schedule(args: EngineArguments, optimizer: Any, total_steps: int) -> Any:
    """Return the schedule in the configuration, None if there is none.

    Raises ConfigurationError if DeepSpeed has none of that name, or refuses its parameters.
    """
    configuration = _configuration(args)
    if configuration.scheduler is None:
        return None
    from deepspeed.runtime import lr_schedules

    section, _ = configuration.for_length(_length(args, total_steps))
    name = section.get("type")
    if not isinstance(name, str) or name not in lr_schedules.VALID_LR_SCHEDULES:
        known = ", ".join(lr_schedules.VALID_LR_SCHEDULES)
        raise ConfigurationError(
            f"You chose scheduler.type={name!r} in DeepSpeed's configuration, but it has {known}; choose among these."
        )
    try:
        return getattr(lr_schedules, name)(optimizer, **section.get("params", {}))
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"You chose the scheduler {name} in DeepSpeed's configuration, but it refuses its parameters: {error}."
        ) from error


@contextmanager
def model_init(args: EngineArguments) -> Iterator[None]:
    """Let transformers know in this context that ZeRO 3 is chosen; it then partitions the models that it creates.

    Raises ConfigurationError for an invalid configuration.
    """
    configuration = _stage_3_configuration(args)
    if configuration is not None:
        initialize(args.device, args.local_process_index)
    if configuration is None or "transformers" not in sys.modules:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    active = HfDeepSpeedConfig(configuration.before_model())  # type: ignore[no-untyped-call]  # held by a weak reference
    try:
        yield
    finally:
        unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]
        del active


@contextmanager
def sharded_init(args: EngineArguments, meet: Callable[[], object]) -> Iterator[None]:
    """Let ZeRO 3 partition the parameters of every module as it is created. No-op for other stages.

    meet: waits until the processes have met. Raises ConfigurationError for an invalid configuration.
    """
    configuration = _stage_3_configuration(args)
    if configuration is None:
        yield
        return
    meet()
    with model_init(args):
        import deepspeed

        with deepspeed.zero.Init(config_dict_or_path=configuration.before_model()):
            yield


def unprepared(parameter: Any) -> str | None:
    """Return why a parameter that ZeRO 3 partitioned at its creation cannot be used yet."""
    if not hasattr(parameter, "ds_id"):
        return None
    return (
        "ZeRO 3 partitioned the model when it was created, and no run has prepared it yet, so it cannot be evaluated "
        "or saved; train first, or create it outside zero3_init."
    )


def _configuration(args: EngineArguments) -> DeepSpeedConfiguration:
    """Return the configuration as the arguments stand now; they may have changed since the Trainer was created."""
    return deepspeed_configuration(args) or DeepSpeedConfiguration({})


def _stage_3_configuration(args: EngineArguments) -> DeepSpeedConfiguration | None:
    configuration = _configuration(args)
    if configuration.stage < 3:
        return None
    if configuration.problems:
        raise ConfigurationError(configuration.problems)
    return configuration


def _length(args: EngineArguments, total_steps: int) -> RunLength:
    return RunLength(total_steps, args.get_warmup_steps(total_steps))


ENGINE: Engine[EngineArguments, Any] = Engine(
    "deepspeed",
    make_deepspeed,
    problems=lambda args: _configuration(args).problems,
    check=check,
    precision=precision,
    schedule=schedule,
    model_init=model_init,
    sharded_init=sharded_init,
    consolidates=lambda args: _configuration(args).consolidates,
    element_count=lambda parameter: getattr(parameter, "ds_numel", parameter.numel()),
    unprepared=unprepared,
    keeps_empty_groups=False,  # DeepSpeed removes them from the optimizer
)
