"""hexloop: a training library in ports and adapters.

The names below are loaded when they are first used, so that `import hexloop` costs next to nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexloop.app.arguments import TrainingArguments
    from hexloop.app.arguments.accelerator_config import AcceleratorConfig
    from hexloop.app.arguments.choices import (
        DebugOption,
        FSDPOption,
        HPSearchBackend,
        HubStrategy,
        IntervalStrategy,
        OptimizerNames,
        ParallelMode,
        SaveStrategy,
        SchedulerType,
    )
    from hexloop.app.callbacks import (
        CallbackHandler,
        DefaultFlowCallback,
        ExportableState,
        TrainerCallback,
        TrainerControl,
        TrainerState,
    )
    from hexloop.app.callbacks.early_stopping import EarlyStoppingCallback
    from hexloop.app.callbacks.notebook.callback import NotebookProgressCallback
    from hexloop.app.callbacks.printer import PrinterCallback
    from hexloop.app.callbacks.progress import ProgressCallback
    from hexloop.app.deepspeed.making import zero3_init
    from hexloop.app.foreign import export_checkpoint, import_checkpoint
    from hexloop.app.last_checkpoint import get_last_checkpoint
    from hexloop.app.parser import HfArg, HfArgumentParser
    from hexloop.app.reproducibility import enable_full_determinism, set_seed
    from hexloop.app.schedules import (
        get_adafactor_schedule,
        get_constant_schedule,
        get_constant_schedule_with_warmup,
        get_cosine_schedule_with_warmup,
        get_cosine_with_hard_restarts_schedule_with_warmup,
        get_cosine_with_min_lr_schedule_with_warmup,
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
        get_greedy_schedule,
        get_inverse_sqrt_schedule,
        get_linear_schedule_with_warmup,
        get_polynomial_decay_schedule_with_warmup,
        get_reduce_on_plateau_schedule,
        get_scheduler,
        get_wsd_schedule,
    )
    from hexloop.app.sequence_to_sequence import Seq2SeqTrainer, Seq2SeqTrainingArguments
    from hexloop.app.trainer import Trainer, TrainOutput
    from hexloop.app.values import (
        DataCollatorWithPadding,
        DefaultDataCollator,
        EvalLoopOutput,
        EvalPrediction,
        PredictionOutput,
        default_data_collator,
    )
    from hexloop.domain.errors import (
        CheckpointError,
        CollectiveError,
        ConfigurationError,
        DamagedCheckpointError,
        DataError,
        HexloopError,
        NewerSchemaError,
        NotFiniteError,
        RunStateError,
        StorageError,
        StorageFullError,
        UnreadableCheckpointError,
    )
    from hexloop.domain.events import (
        AnyEvent,
        CheckpointPublished,
        EpochBegan,
        EpochEnded,
        Evaluated,
        EvaluationBegan,
        EvaluationInterrupted,
        Event,
        Logged,
        MicroStepEnded,
        Paused,
        PredictionStepEnded,
        Saved,
        SaveFailed,
        SaveSkipped,
        SaveWaits,
        StepBegan,
        StepEnded,
        TrainBegan,
        TrainEnded,
    )

__version__ = "0.1.0"

_HOMES = {
    "TrainingArguments": "hexloop.app.arguments",
    "AcceleratorConfig": "hexloop.app.arguments.accelerator_config",
    "DebugOption": "hexloop.app.arguments.choices",
    "FSDPOption": "hexloop.app.arguments.choices",
    "HPSearchBackend": "hexloop.app.arguments.choices",
    "HubStrategy": "hexloop.app.arguments.choices",
    "IntervalStrategy": "hexloop.app.arguments.choices",
    "OptimizerNames": "hexloop.app.arguments.choices",
    "ParallelMode": "hexloop.app.arguments.choices",
    "SaveStrategy": "hexloop.app.arguments.choices",
    "SchedulerType": "hexloop.app.arguments.choices",
    "CallbackHandler": "hexloop.app.callbacks",
    "DefaultFlowCallback": "hexloop.app.callbacks",
    "ExportableState": "hexloop.app.callbacks",
    "TrainerCallback": "hexloop.app.callbacks",
    "TrainerControl": "hexloop.app.callbacks",
    "TrainerState": "hexloop.app.callbacks",
    "EarlyStoppingCallback": "hexloop.app.callbacks.early_stopping",
    "NotebookProgressCallback": "hexloop.app.callbacks.notebook.callback",
    "PrinterCallback": "hexloop.app.callbacks.printer",
    "ProgressCallback": "hexloop.app.callbacks.progress",
    "zero3_init": "hexloop.app.deepspeed.making",
    "export_checkpoint": "hexloop.app.foreign",
    "import_checkpoint": "hexloop.app.foreign",
    "get_last_checkpoint": "hexloop.app.last_checkpoint",
    "HfArg": "hexloop.app.parser",
    "HfArgumentParser": "hexloop.app.parser",
    "enable_full_determinism": "hexloop.app.reproducibility",
    "set_seed": "hexloop.app.reproducibility",
    "get_adafactor_schedule": "hexloop.app.schedules",
    "get_constant_schedule": "hexloop.app.schedules",
    "get_constant_schedule_with_warmup": "hexloop.app.schedules",
    "get_cosine_schedule_with_warmup": "hexloop.app.schedules",
    "get_cosine_with_hard_restarts_schedule_with_warmup": "hexloop.app.schedules",
    "get_cosine_with_min_lr_schedule_with_warmup": "hexloop.app.schedules",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": "hexloop.app.schedules",
    "get_greedy_schedule": "hexloop.app.schedules",
    "get_inverse_sqrt_schedule": "hexloop.app.schedules",
    "get_linear_schedule_with_warmup": "hexloop.app.schedules",
    "get_polynomial_decay_schedule_with_warmup": "hexloop.app.schedules",
    "get_reduce_on_plateau_schedule": "hexloop.app.schedules",
    "get_scheduler": "hexloop.app.schedules",
    "get_wsd_schedule": "hexloop.app.schedules",
    "Seq2SeqTrainer": "hexloop.app.sequence_to_sequence",
    "Seq2SeqTrainingArguments": "hexloop.app.sequence_to_sequence",
    "TrainOutput": "hexloop.app.trainer",
    "Trainer": "hexloop.app.trainer",
    "DataCollatorWithPadding": "hexloop.app.values",
    "DefaultDataCollator": "hexloop.app.values",
    "EvalLoopOutput": "hexloop.app.values",
    "EvalPrediction": "hexloop.app.values",
    "PredictionOutput": "hexloop.app.values",
    "default_data_collator": "hexloop.app.values",
    "CheckpointError": "hexloop.domain.errors",
    "CollectiveError": "hexloop.domain.errors",
    "ConfigurationError": "hexloop.domain.errors",
    "DamagedCheckpointError": "hexloop.domain.errors",
    "DataError": "hexloop.domain.errors",
    "HexloopError": "hexloop.domain.errors",
    "NewerSchemaError": "hexloop.domain.errors",
    "NotFiniteError": "hexloop.domain.errors",
    "RunStateError": "hexloop.domain.errors",
    "StorageError": "hexloop.domain.errors",
    "StorageFullError": "hexloop.domain.errors",
    "UnreadableCheckpointError": "hexloop.domain.errors",
    "AnyEvent": "hexloop.domain.events",
    "CheckpointPublished": "hexloop.domain.events",
    "EpochBegan": "hexloop.domain.events",
    "EpochEnded": "hexloop.domain.events",
    "Evaluated": "hexloop.domain.events",
    "EvaluationBegan": "hexloop.domain.events",
    "EvaluationInterrupted": "hexloop.domain.events",
    "Event": "hexloop.domain.events",
    "Logged": "hexloop.domain.events",
    "MicroStepEnded": "hexloop.domain.events",
    "Paused": "hexloop.domain.events",
    "PredictionStepEnded": "hexloop.domain.events",
    "SaveFailed": "hexloop.domain.events",
    "SaveSkipped": "hexloop.domain.events",
    "SaveWaits": "hexloop.domain.events",
    "Saved": "hexloop.domain.events",
    "StepBegan": "hexloop.domain.events",
    "StepEnded": "hexloop.domain.events",
    "TrainBegan": "hexloop.domain.events",
    "TrainEnded": "hexloop.domain.events",
}

__all__ = [
    "AcceleratorConfig",
    "AnyEvent",
    "CallbackHandler",
    "CheckpointError",
    "CheckpointPublished",
    "CollectiveError",
    "ConfigurationError",
    "DamagedCheckpointError",
    "DataCollatorWithPadding",
    "DataError",
    "DebugOption",
    "DefaultDataCollator",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EpochBegan",
    "EpochEnded",
    "EvalLoopOutput",
    "EvalPrediction",
    "Evaluated",
    "EvaluationBegan",
    "EvaluationInterrupted",
    "Event",
    "ExportableState",
    "FSDPOption",
    "HPSearchBackend",
    "HexloopError",
    "HfArg",
    "HfArgumentParser",
    "HubStrategy",
    "IntervalStrategy",
    "Logged",
    "MicroStepEnded",
    "NewerSchemaError",
    "NotFiniteError",
    "NotebookProgressCallback",
    "OptimizerNames",
    "ParallelMode",
    "Paused",
    "PredictionOutput",
    "PredictionStepEnded",
    "PrinterCallback",
    "ProgressCallback",
    "RunStateError",
    "SaveFailed",
    "SaveSkipped",
    "SaveStrategy",
    "SaveWaits",
    "Saved",
    "SchedulerType",
    "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments",
    "StepBegan",
    "StepEnded",
    "StorageError",
    "StorageFullError",
    "TrainBegan",
    "TrainEnded",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "UnreadableCheckpointError",
    "default_data_collator",
    "enable_full_determinism",
    "export_checkpoint",
    "get_adafactor_schedule",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_last_checkpoint",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
    "import_checkpoint",
    "set_seed",
    "zero3_init",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hexloop' has no attribute {name!r}")
    with _collector_paused():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Imports leave next to no garbage, but make the collector look through all that torch made: 0.1 s for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
