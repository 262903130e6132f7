"""hexloop: a training library in ports and adapters.

The names below are loaded when they are first used, so that `import hexloop` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexloop.app.arguments import TrainingArguments
    from hexloop.app.arguments.choices import IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
    from hexloop.app.callbacks import (
        CallbackHandler,
        DefaultFlowCallback,
        ExportableState,
        TrainerCallback,
        TrainerControl,
        TrainerState,
    )
    from hexloop.app.callbacks.early_stopping import EarlyStoppingCallback
    from hexloop.app.callbacks.printer import PrinterCallback
    from hexloop.app.callbacks.progress import ProgressCallback
    from hexloop.app.foreign import export_checkpoint, import_checkpoint
    from hexloop.app.trainer import Trainer, TrainOutput
    from hexloop.app.values import (
        DataCollatorWithPadding,
        EvalLoopOutput,
        EvalPrediction,
        PredictionOutput,
        default_data_collator,
    )

__version__ = "0.1.0"

_HOMES = {
    "DataCollatorWithPadding": "hexloop.app.values",
    "default_data_collator": "hexloop.app.values",
    "EvalLoopOutput": "hexloop.app.values",
    "EvalPrediction": "hexloop.app.values",
    "PredictionOutput": "hexloop.app.values",
    "TrainingArguments": "hexloop.app.arguments",
    "IntervalStrategy": "hexloop.app.arguments.choices",
    "OptimizerNames": "hexloop.app.arguments.choices",
    "SaveStrategy": "hexloop.app.arguments.choices",
    "SchedulerType": "hexloop.app.arguments.choices",
    "CallbackHandler": "hexloop.app.callbacks",
    "DefaultFlowCallback": "hexloop.app.callbacks",
    "EarlyStoppingCallback": "hexloop.app.callbacks.early_stopping",
    "ExportableState": "hexloop.app.callbacks",
    "PrinterCallback": "hexloop.app.callbacks.printer",
    "ProgressCallback": "hexloop.app.callbacks.progress",
    "TrainerCallback": "hexloop.app.callbacks",
    "TrainerControl": "hexloop.app.callbacks",
    "TrainerState": "hexloop.app.callbacks",
    "export_checkpoint": "hexloop.app.foreign",
    "import_checkpoint": "hexloop.app.foreign",
    "Trainer": "hexloop.app.trainer",
    "TrainOutput": "hexloop.app.trainer",
}

__all__ = [
    "CallbackHandler",
    "DataCollatorWithPadding",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EvalLoopOutput",
    "EvalPrediction",
    "ExportableState",
    "IntervalStrategy",
    "OptimizerNames",
    "PredictionOutput",
    "PrinterCallback",
    "ProgressCallback",
    "SaveStrategy",
    "SchedulerType",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "default_data_collator",
    "export_checkpoint",
    "import_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hexloop' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
