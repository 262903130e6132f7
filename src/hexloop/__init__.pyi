"""The public names of hexloop, each with the module that defines it."""

from .app.arguments import TrainingArguments as TrainingArguments
from .app.arguments.data import AcceleratorConfig as AcceleratorConfig
from .app.arguments.choices import (
    DebugOption as DebugOption,
    FSDPOption as FSDPOption,
    HPSearchBackend as HPSearchBackend,
    HubStrategy as HubStrategy,
    IntervalStrategy as IntervalStrategy,
    OptimizerNames as OptimizerNames,
    ParallelMode as ParallelMode,
    SaveStrategy as SaveStrategy,
    SchedulerType as SchedulerType,
    ShardedDDPOption as ShardedDDPOption,
)
from .app.callbacks import (
    CallbackHandler as CallbackHandler,
    DefaultFlowCallback as DefaultFlowCallback,
    ExportableState as ExportableState,
    TrainerCallback as TrainerCallback,
    TrainerControl as TrainerControl,
    TrainerState as TrainerState,
)
from .app.callbacks.flow import (
    EarlyStoppingCallback as EarlyStoppingCallback,
    JITCheckpointCallback as JITCheckpointCallback,
)
from .app.callbacks.notebook import NotebookProgressCallback as NotebookProgressCallback
from .app.callbacks.progress import PrinterCallback as PrinterCallback, ProgressCallback as ProgressCallback
from .app.callbacks.trackers import (
    AzureMLCallback as AzureMLCallback,
    ClearMLCallback as ClearMLCallback,
    CodeCarbonCallback as CodeCarbonCallback,
    CometCallback as CometCallback,
    DVCLiveCallback as DVCLiveCallback,
    DagsHubCallback as DagsHubCallback,
    FlyteCallback as FlyteCallback,
    KubeflowCallback as KubeflowCallback,
    MLflowCallback as MLflowCallback,
    NeptuneCallback as NeptuneCallback,
    SwanLabCallback as SwanLabCallback,
    TensorBoardCallback as TensorBoardCallback,
    TrackerCallback as TrackerCallback,
    TrackioCallback as TrackioCallback,
    WandbCallback as WandbCallback,
)
from .app.takeover.names import (
    TFTrainer as TFTrainer,
    TFTrainingArguments as TFTrainingArguments,
    default_hp_space_sigopt as default_hp_space_sigopt,
)
from .app.search.parameters import with_hyperparameters as with_hyperparameters
from .app.search.results import (
    BestRun as BestRun,
    default_compute_objective as default_compute_objective,
    default_hp_space_optuna as default_hp_space_optuna,
    default_hp_space_ray as default_hp_space_ray,
    default_hp_space_wandb as default_hp_space_wandb,
    hp_params as hp_params,
)
from .app.takeover import Takeover as Takeover, takeover as takeover
from .domain.limits import reading_limits as reading_limits
from .app.assembly.torch.merging import merge_adapters as merge_adapters
from .app.assembly.torch.model import zero3_init as zero3_init
from .app.assembly.torch.transformers_checkpoints.exporting import export_checkpoint as export_checkpoint
from .app.assembly.torch.transformers_checkpoints.importing import import_checkpoint as import_checkpoint
from .app.assembly.storage import get_last_checkpoint as get_last_checkpoint
from .app.arguments.parser import HfArg as HfArg, HfArgumentParser as HfArgumentParser
from .app.assembly.torch.determinism import enable_full_determinism as enable_full_determinism, set_seed as set_seed
from .adapters.scheduler.torch import (
    get_adafactor_schedule as get_adafactor_schedule,
    get_constant_schedule as get_constant_schedule,
    get_constant_schedule_with_warmup as get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    get_greedy_schedule as get_greedy_schedule,
    get_inverse_sqrt_schedule as get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup as get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
    get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule,
    get_scheduler as get_scheduler,
    get_wsd_schedule as get_wsd_schedule,
)
from .app.trainer.sequence_to_sequence import Seq2SeqTrainer as Seq2SeqTrainer
from .app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
from .app.trainer.fine_tuning import SFTTrainer as SFTTrainer
from .app.arguments.fine_tuning import SFTConfig as SFTConfig
from .app.trainer.results import TrainOutput as TrainOutput
from .app.trainer.trainer import Trainer as Trainer
from .adapters.batches.torch.collate import (
    DataCollatorWithPadding as DataCollatorWithPadding,
    DefaultDataCollator as DefaultDataCollator,
    default_data_collator as default_data_collator,
)
from .adapters.evaluator.torch.predictions import (
    EvalPrediction as EvalPrediction,
)
from .domain.evaluation import EvalLoopOutput as EvalLoopOutput, PredictionOutput as PredictionOutput
from .domain.errors import (
    ChangedCheckpointError as ChangedCheckpointError,
    CheckpointError as CheckpointError,
    CollectiveError as CollectiveError,
    ConfigurationError as ConfigurationError,
    DamagedCheckpointError as DamagedCheckpointError,
    DataError as DataError,
    HexloopError as HexloopError,
    InputsError as InputsError,
    IrregularFileError as IrregularFileError,
    MissingCheckpointError as MissingCheckpointError,
    MissingFileError as MissingFileError,
    NewerSchemaError as NewerSchemaError,
    NotFiniteError as NotFiniteError,
    RefusedError as RefusedError,
    RunStateError as RunStateError,
    SignatureError as SignatureError,
    StorageError as StorageError,
    StorageFullError as StorageFullError,
    UnavailableError as UnavailableError,
    UnreadableCheckpointError as UnreadableCheckpointError,
)
from .domain.events import (
    AnyEvent as AnyEvent,
    CheckpointPublished as CheckpointPublished,
    EpochBegan as EpochBegan,
    EpochEnded as EpochEnded,
    Evaluated as Evaluated,
    EvaluationBegan as EvaluationBegan,
    EvaluationInterrupted as EvaluationInterrupted,
    Event as Event,
    IrregularWindow as IrregularWindow,
    Logged as Logged,
    MicroStepEnded as MicroStepEnded,
    Paused as Paused,
    PredictionStepEnded as PredictionStepEnded,
    Saved as Saved,
    SaveFailed as SaveFailed,
    SaveSkipped as SaveSkipped,
    SaveWaits as SaveWaits,
    StepBegan as StepBegan,
    StepEnded as StepEnded,
    TrainBegan as TrainBegan,
    TrainEnded as TrainEnded,
    WindowLeftOut as WindowLeftOut,
)

__version__: str

__all__: list[str]
