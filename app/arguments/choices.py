"""Enumerations of the values that arguments take, with the names and values of transformers."""

from __future__ import annotations

from enum import Enum, StrEnum
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal


class IntervalStrategy(StrEnum):
    """When something periodic happens: never, at an interval of steps, or at the end of each epoch."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(StrEnum):
    """When a checkpoint is written; `best` means when an evaluation is the best so far."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class HubStrategy(StrEnum):
    """What is published on the Hub, and when; `best` means the model of each save that is the best so far."""

    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"
    BEST = "best"


class DebugOption(StrEnum):
    """Debug options of a run."""

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class FSDPOption(StrEnum):
    """Options of torch's fully sharded data parallelism, as in earlier releases."""

    FULL_SHARD = "full_shard"
    SHARD_GRAD_OP = "shard_grad_op"
    NO_SHARD = "no_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class ShardedDDPOption(StrEnum):
    """Options of fairscale's sharding, which `sharded_ddp` of earlier releases took; each stands for one of `fsdp`."""

    SIMPLE = "simple"
    ZERO_DP_2 = "zero_dp_2"
    ZERO_DP_3 = "zero_dp_3"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class HPSearchBackend(StrEnum):
    """Libraries for hyperparameter search."""

    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"


class ParallelMode(Enum):
    """How a model is parallelized. Equal to the mode of transformers with the same value."""

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
    SAGEMAKER_MODEL_PARALLEL = "sagemaker_model_parallel"
    SAGEMAKER_DATA_PARALLEL = "sagemaker_data_parallel"
    TPU = "tpu"

    def __eq__(self, other: object) -> bool:
        """Compare by value, also with the enumeration of transformers, whose functions compare an argument with it."""
        if isinstance(other, Enum) and type(other).__name__ == type(self).__name__:
            return bool(self.value == other.value)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)


class SchedulerType(StrEnum):
    """Learning-rate schedules."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    GREEDY = "greedy"


class OptimizerNames(StrEnum):
    """Optimizers that can be chosen by name. ADAMW_HF and ADAMW_APEX_FUSED, of earlier releases, are aliases."""

    ADAMW_TORCH = "adamw_torch"
    ADAMW_HF = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_APEX_FUSED = "adamw_torch_fused"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAFACTOR = "adafactor"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADEMAMIX = "ademamix"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_8BIT = "adamw_8bit"
    ADEMAMIX_8BIT = "ademamix_8bit"
    LION_8BIT = "lion_8bit"
    LION = "lion_32bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    GROKADAMW = "grokadamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    STABLE_ADAMW = "stable_adamw"


OWN_OPTIMIZERS = ("adamw_torch_fp8", "muon")
"""Optimizers that hexloop has by name and transformers has not."""


def further_choices(kind: type[Enum]) -> tuple[str, ...]:
    """Return the texts that an argument of the enumeration takes besides its members: further optimizers.

    These are hexloop's own, and those of installed packages, by the names of their entry points.

    Args:
        kind: the enumeration.
    """
    if kind is not OptimizerNames:
        return ()
    return (*OWN_OPTIMIZERS, *sorted(entry_points(group="hexloop.optimizers").names))


USUAL_NAMES = {
    "adam": ("adamw_torch", ", which is Adam while weight_decay is 0, the default"),
    "adamw": ("adamw_torch", ""),
    "adamw_hf": ("adamw_torch", ", torch's own, because transformers has removed its AdamW"),
    "adamw_apex_fused": ("adamw_torch_fused", ", torch's own, which replaces Apex's"),
    "adam8bit": ("adamw_bnb_8bit", ""),
    "adam_8bit": ("adamw_bnb_8bit", ""),
    "lion": ("lion_32bit", ""),
    "momentum": ("sgd", " with optim_args='momentum=0.9'"),
}
"""Names that are usual elsewhere: the choice that is meant, and what else to say about it."""


# What type checkers and editors know of arguments that take one of a few texts, or further types. Enum stands for the
# members of transformers' enumerations, which are accepted by value. At run time these types are `str`, which parsers
# of dataclasses understand, and the declaration of each argument checks its values.
if TYPE_CHECKING:
    IntervalText = Literal["no", "steps", "epoch"] | Enum
    SaveText = Literal["no", "steps", "epoch", "best"] | Enum
    HubText = Literal["end", "every_save", "checkpoint", "all_checkpoints", "best"] | Enum
    ScheduleText = (
        Literal[
            "linear",
            "cosine",
            "cosine_with_restarts",
            "polynomial",
            "constant",
            "constant_with_warmup",
            "inverse_sqrt",
            "reduce_lr_on_plateau",
            "cosine_with_min_lr",
            "cosine_warmup_with_min_lr",
            "warmup_stable_decay",
            "greedy",
        ]
        | Enum
    )
    TokenCountText = Literal["all", "non_padding", "no"]
    LogLevelText = Literal["passive", "detail", "debug", "info", "warning", "error", "critical"]
    SamplingText = Literal["random", "sequential", "group_by_length", "batch_rebalance"]
    WorkerStartText = Literal["fork", "spawn", "forkserver"]
    BackendText = Literal["nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl"]
    PackingText = Literal["bfd", "bfd_split", "wrapped"]
    AveragesText = Literal["instead", "beside"]
    JournalText = Literal["off", "events", "steps"]
    ReactionText = Literal["warn", "stop", "skip", "rollback"]
    ReproducedText = Literal["transformers"]
    WeightingText = Literal["exact", "reference"]
    BusyText = Literal["wait", "skip"]
    ShardingText = str | bool | list[str]
else:
    IntervalText = SaveText = HubText = ScheduleText = TokenCountText = LogLevelText = SamplingText = str
    WorkerStartText = BackendText = PackingText = AveragesText = JournalText = ReactionText = str
    ReproducedText = WeightingText = BusyText = ShardingText = str
