"""Stands for the package transformers: `hexloop.transformers.<name>` has the names of `transformers.<name>`.

Classes of the Trainer family, and what else hexloop defines under the same name, are hexloop's, also if transformers is
not installed. Everything else is handed on from the installed transformers when it is first used; its type is Any.
"""

from typing import TYPE_CHECKING, Any

from hexloop.app.takeover import stand_ins as _stand_ins

if TYPE_CHECKING:
    from hexloop import (
        AcceleratorConfig as AcceleratorConfig,
        BestRun as BestRun,
        CallbackHandler as CallbackHandler,
        DataCollatorWithPadding as DataCollatorWithPadding,
        DebugOption as DebugOption,
        DefaultDataCollator as DefaultDataCollator,
        DefaultFlowCallback as DefaultFlowCallback,
        EarlyStoppingCallback as EarlyStoppingCallback,
        EvalLoopOutput as EvalLoopOutput,
        EvalPrediction as EvalPrediction,
        ExportableState as ExportableState,
        FSDPOption as FSDPOption,
        HPSearchBackend as HPSearchBackend,
        HfArg as HfArg,
        HfArgumentParser as HfArgumentParser,
        HubStrategy as HubStrategy,
        IntervalStrategy as IntervalStrategy,
        JITCheckpointCallback as JITCheckpointCallback,
        NotebookProgressCallback as NotebookProgressCallback,
        OptimizerNames as OptimizerNames,
        ParallelMode as ParallelMode,
        PredictionOutput as PredictionOutput,
        PrinterCallback as PrinterCallback,
        ProgressCallback as ProgressCallback,
        SaveStrategy as SaveStrategy,
        SchedulerType as SchedulerType,
        Seq2SeqTrainer as Seq2SeqTrainer,
        Seq2SeqTrainingArguments as Seq2SeqTrainingArguments,
        ShardedDDPOption as ShardedDDPOption,
        TFTrainer as TFTrainer,
        TFTrainingArguments as TFTrainingArguments,
        TrainOutput as TrainOutput,
        Trainer as Trainer,
        TrainerCallback as TrainerCallback,
        TrainerControl as TrainerControl,
        TrainerState as TrainerState,
        TrainingArguments as TrainingArguments,
        default_compute_objective as default_compute_objective,
        default_data_collator as default_data_collator,
        default_hp_space_optuna as default_hp_space_optuna,
        default_hp_space_ray as default_hp_space_ray,
        default_hp_space_sigopt as default_hp_space_sigopt,
        default_hp_space_wandb as default_hp_space_wandb,
        enable_full_determinism as enable_full_determinism,
        get_adafactor_schedule as get_adafactor_schedule,
        get_constant_schedule as get_constant_schedule,
        get_constant_schedule_with_warmup as get_constant_schedule_with_warmup,
        get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup,
        get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
        get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
        get_greedy_schedule as get_greedy_schedule,
        get_inverse_sqrt_schedule as get_inverse_sqrt_schedule,
        get_last_checkpoint as get_last_checkpoint,
        get_linear_schedule_with_warmup as get_linear_schedule_with_warmup,
        get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
        get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule,
        get_scheduler as get_scheduler,
        get_wsd_schedule as get_wsd_schedule,
        hp_params as hp_params,
        set_seed as set_seed,
    )


def __getattr__(name: str) -> Any:
    return _stand_ins.attribute(__name__, name)


def __dir__() -> list[str]:
    return _stand_ins.names(__name__)
