"""`TrainingArguments`: all groups of arguments in one class, and values derived from them and the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hexloop.app.arguments.base import SEQ2SEQ_ARGUMENTS, plain, problems_of, unknown_argument
from hexloop.app.arguments.choices import ParallelMode
from hexloop.app.arguments.data import AcceleratorArguments, BatchArguments
from hexloop.app.arguments.declaration import arguments_class, default_of, takes
from hexloop.app.arguments.hardware import (
    HardwareArguments,
    KernelArguments,
    MemoryArguments,
    PrecisionArguments,
    ProcessArguments,
    ShardingArguments,
)
from hexloop.app.arguments.hexloop_only import HexloopArguments
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.app.arguments.optimization import BestModelArguments, ReproducibilityArguments
from hexloop.app.arguments.outputs import (
    LOG_LEVELS,
    DebuggingArguments,
    HubArguments,
    SavingArguments,
    TrackioArguments,
)
from hexloop.app.arguments.setters import Setters
from hexloop.app.devices import (
    count_devices,
    detect_device,
    missing_device,
    own_parallel_mode,
    torch_name,
    usual_compiler,
)
from hexloop.app.environment import DistributedEnvironment, is_on, launched
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, problem

if TYPE_CHECKING:
    import torch


@arguments_class
class TrainingArguments(
    Setters,
    HexloopArguments,
    DebuggingArguments,
    HubArguments,
    ShardingArguments,
    ProcessArguments,
    ReproducibilityArguments,
    HardwareArguments,
    KernelArguments,
    MemoryArguments,
    PrecisionArguments,
    TrackioArguments,
    BestModelArguments,
    AcceleratorArguments,
    BatchArguments,
    SavingArguments,
):
    """The arguments of a run, with the names and defaults of transformers.

    Each argument is declared in the group of its subject; the fields are in the order of the groups, the last base
    first. `hexloop train --help` lists them. `output_dir` may be passed by position, the others by name.

    It is an attrs class that also works as a dataclass: derive from it with `@dataclass` or with
    `@attrs.define(slots=False)`, and call `super().__post_init__()` from your own `__post_init__`. Arguments may be
    assigned at any time.

    Raises:
        ConfigurationError: on construction with every problem; on assignment with the problem of the value by itself.
            Values that are invalid only in combination are found by `check`, which is called again before training,
            as are values that are assigned during a takeover.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]
    """The fields that may be given as JSON text; a subclass may extend the list by fields of its own."""

    default_optim: ClassVar[str] = "adamw_torch_fused"
    is_torch_greater_or_equal_than_2_8: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check everything. A subclass that has its own `__post_init__` calls this one from it."""
        for name in self._VALID_DICT_FIELDS:
            value = getattr(self, name, None)
            if name not in TrainingArguments._VALID_DICT_FIELDS and isinstance(value, str) and value.startswith("{"):
                setattr(self, name, _parsed(name, value))
        super().__post_init__()
        self._validate_args()
        configured = getattr(self.accelerator_config, "use_configured_state", False)
        if self.distributed_environment.world_size == 1 and not configured:
            from hexloop.app.joining import share_accelerate_state

            share_accelerate_state(self)

    def _derive(self) -> None:
        super()._derive()
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = usual_compiler(self.device_name)

    def _validate_args(self) -> None:
        """No-op: everything is checked. A subclass may override it; it is called at the end of `__post_init__`."""

    @property
    def distributed_environment(self) -> DistributedEnvironment:
        """This process's rank, world size and device. Not a field; another value may be assigned."""
        given: DistributedEnvironment | None = vars(self).get("_given_surroundings")
        if given is not None:
            return given
        process = launched()
        if process.world_size == 1:
            return DistributedEnvironment()
        ranks = (process.world_size, process.rank, process.local_rank)
        return DistributedEnvironment(*ranks, self._barrier, local_world_size=process.local_world_size)

    @distributed_environment.setter
    def distributed_environment(self, distributed_environment: DistributedEnvironment) -> None:
        vars(self)["_given_surroundings"] = distributed_environment

    def _barrier(self) -> None:
        from hexloop.app.joining import join

        join(self).barrier("main_process_first")

    @property
    def train_batch_size(self) -> int:
        """Number of samples in a training micro-batch of this process."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Number of samples in an evaluation batch of this process."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def device(self) -> torch.device:
        """The device of this process.

        Raises:
            ConfigurationError: if torch has no device of that name.
        """
        import torch

        name = self.device_name
        try:
            return torch.device(torch_name(name))
        except RuntimeError as error:
            raise missing_device(name) from error

    @property
    def device_name(self) -> str:
        """The name of the device of this process, as the table of devices has it; usually torch's."""
        if self._on_cpu:
            return "cpu"
        distributed_environment = self.distributed_environment
        return distributed_environment.device or detect_device(distributed_environment.local_process_index)

    @property
    def n_gpu(self) -> int:
        """Number of GPUs that this process trains on; 0 on the CPU."""
        if self._on_cpu:
            return 0
        if self.distributed_environment.n_gpu is not None:
            return self.distributed_environment.n_gpu
        return count_devices(self.device_name, self.world_size)

    @property
    def _n_gpu(self) -> int:
        """See `n_gpu`."""
        return self.n_gpu

    @property
    def _setup_devices(self) -> torch.device:
        """See `device`."""
        return self.device

    @property
    def distributed_state(self) -> Any:
        """Accelerate's PartialState of the run, which shares its process group and device."""
        from hexloop.app.joining import accelerate_state

        return accelerate_state(self)

    @property
    def deepspeed_plugin(self) -> Any:
        """Accelerate's plugin for the configuration of DeepSpeed; None without one."""
        if not self.deepspeed:
            return None
        from accelerate.utils import DeepSpeedPlugin

        return DeepSpeedPlugin(hf_ds_config=self.deepspeed)

    @property
    def fsdp_plugin_args(self) -> dict[str, Any] | None:
        """The keywords of accelerate's plugin for FSDP; None without `fsdp`."""
        if not self.fsdp:
            return None
        from hexloop.app.engines import fsdp_plugin_arguments

        return fsdp_plugin_arguments(self)

    @property
    def xla_fsdp_config(self) -> dict[str, Any]:
        """The settings of FSDP on XLA in `fsdp_config`, with torch's types; empty without it."""
        from hexloop.app.engines import xla_fsdp_settings

        return xla_fsdp_settings(self)

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        """Whether the processes may accumulate gradients without exchanging them."""
        return not self.deepspeed

    @property
    def _on_cpu(self) -> bool:
        return self.use_cpu or is_on("ACCELERATE_USE_CPU")

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a timedelta, for torch."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def parallel_mode(self) -> ParallelMode:
        """How the model is parallelized: over processes, over the GPUs of this process, or not at all.

        Runs on XLA have a mode of their own, as in transformers.
        """
        own = own_parallel_mode(self.device_name)
        if own is not None:
            return ParallelMode(own)
        if self.world_size > 1:
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_DISTRIBUTED if self.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def world_size(self) -> int:
        """Number of processes in the run."""
        return self.distributed_environment.world_size

    @property
    def process_index(self) -> int:
        """Rank of this process in the run."""
        return self.distributed_environment.process_index

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return self.distributed_environment.local_process_index

    @property
    def should_log(self) -> bool:
        """Whether this process logs."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes checkpoints."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the model to the device. None lets the Trainer decide; a subclass may override."""
        return None

    def get_process_log_level(self) -> int:
        """Return the logging level of this process; that of hexloop's logger if the argument is `passive`."""
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return logging.getLogger("hexloop").getEffectiveLevel() if level == -1 else level

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warmup steps in a run of `num_training_steps`; a ratio of them is rounded up.

        Args:
            num_training_steps: optimizer steps of the whole run.
        """
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the first process (of each machine if `local`, else of the run), then in the others.

        Args:
            local: the first process of each machine, instead of the first of all.
            desc: describes the block in debug messages.
        """
        first = (self.local_process_index if local else self.process_index) == 0
        if not first:
            logging.getLogger("hexloop").debug("process %d waits for the first to do: %s", self.process_index, desc)
            self.distributed_environment.barrier()
        try:
            yield
        finally:
            if first:
                self.distributed_environment.barrier()

    @staticmethod
    def _dict_dtype_to_str(d: dict[str, Any]) -> None:
        """Replace each torch dtype in a dictionary, and in those within it, by its name, in place."""
        for name, value in d.items():
            if isinstance(value, dict):
                TrainingArguments._dict_dtype_to_str(value)
            else:
                d[name] = plain(value)

    def to_json_string(self) -> str:
        """Return `to_dict` as JSON; values without a JSON form, such as a path or a torch dtype, as text."""
        return json.dumps(self.to_dict(), indent=2, default=lambda value: str(value).removeprefix("torch."))

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return `to_dict` and the batch sizes for trackers; values that are not bool, int, float or str as text."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()}


def _parsed(name: str, text: str) -> Any:
    """Return the value of JSON text, with strings that spell a truth value or a number converted."""
    try:
        return _without_texts(json.loads(text))
    except ValueError as error:
        raise ConfigurationError(f"{name}={text!r} is not valid JSON ({error}); correct it.") from error


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    with contextlib.suppress(ValueError):
        return int(value)
    with contextlib.suppress(ValueError):
        return float(value)
    return value


T = TypeVar("T", bound=TrainingArguments)


def from_transformers(args: Any, cls: type[T]) -> T | TrainingArguments:
    """Return `args` itself if it is hexloop's, else an object of the class `cls` with the same values.

    Raises ConfigurationError if it is not an object of training arguments, and with everything in it that hexloop does
    not support: unknown arguments, and methods that a subclass overrides.
    """
    if isinstance(args, TrainingArguments):
        return args
    if not _are_from_transformers(args):
        refusal = RefusalError("a Trainer takes TrainingArguments of hexloop or transformers", "make such an object")
        raise ConfigurationError(problem({"args": args}, refusal))
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init}
    changed = {name: value for name, value in values.items() if not _is_default(args, name, value)}
    ignored = {name for name in SEQ2SEQ_ARGUMENTS if name not in changed} | LEGACY_ARGUMENTS.keys()
    unknown = {name: value for name, value in values.items() if name not in ignored and not takes(cls, name)}
    known = {name: value for name, value in changed.items() if name not in unknown}
    problems = [unknown_argument(name, value, ()) for name, value in unknown.items()] + _overrides(args)
    if problems:
        problems = [f"{each} Or derive {type(args).__name__} from hexloop.TrainingArguments." for each in problems]
        raise ConfigurationError([*problems, *problems_of(lambda: cls(**known))])
    return cls(**known)


def _are_from_transformers(args: Any) -> bool:
    """Return whether a base class is transformers', judged by its module, as transformers need not be installed."""
    return dataclasses.is_dataclass(args) and any(_is_from_transformers(owner) for owner in inspect.getmro(type(args)))


def _is_from_transformers(owner: type) -> bool:
    return owner.__module__.split(".")[0] == "transformers"


def _is_default(args: Any, name: str, value: object) -> bool:
    default = default_of(type(args), name)
    return bool(value is default or value == default or (name == "fsdp_config" and value == _UNSET_FSDP_CONFIG))


_UNSET_FSDP_CONFIG = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
"""What transformers makes of fsdp_config=None: before release 5.10 always, later with `fsdp` only."""


def _overrides(args: Any) -> list[str]:
    """Return a problem for each method and property of transformers' class that a subclass of it overrides."""
    return [
        f"You passed args of the class {owner.__name__}, which overrides {name}, but hexloop would not call it."
        for owner in type(args).__mro__
        if owner is not object and not _is_from_transformers(owner)
        for name, member in vars(owner).items()
        if (inspect.isfunction(member) or isinstance(member, property))
        and hasattr(TrainingArguments, name)
        and not name.startswith("__")
    ]
