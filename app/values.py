"""Classes and functions of adapters that users import from `hexloop`: collators, results, and schedule factories."""

from hexloop.adapters.batches.torch.collate import DataCollatorWithPadding, DefaultDataCollator, default_data_collator
from hexloop.adapters.evaluator.torch.outputs import EvalLoopOutput, EvalPrediction, PredictionOutput
from hexloop.adapters.scheduler.torch.factories import (
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

__all__ = [
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "EvalLoopOutput",
    "EvalPrediction",
    "PredictionOutput",
    "default_data_collator",
    "get_adafactor_schedule",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
]
