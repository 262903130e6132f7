"""What users hand to a Trainer, or get from it, that an adapter defines."""

from hexloop.adapters.batches.torch.collate import DataCollatorWithPadding, DefaultDataCollator, default_data_collator
from hexloop.adapters.evaluator.torch.outputs import EvalLoopOutput, EvalPrediction, PredictionOutput

__all__ = [
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "EvalLoopOutput",
    "EvalPrediction",
    "PredictionOutput",
    "default_data_collator",
]
