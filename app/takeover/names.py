"""Which names of transformers are hexloop's, in which modules, and the releases of transformers that this holds for.

A name has the same meaning in both libraries, so each is exported by `hexloop` itself.

- Classes of the Trainer family are hexloop's. Classes that libraries derive from them then derive from hexloop's.
- Enumerations are hexloop's, because its arguments contain their members. Those of strings equal transformers' members
  and have the same hash, so a comparison with a member that was imported earlier still holds.
- The values that evaluation and training return, such as `EvalPrediction`, are hexloop's, because its Trainer makes
  them.
- Everything else is transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem

TESTED = ((5, 0), (5, 24))
"""The first and the last release of transformers, major and minor, that the tests have run with."""

FAMILY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trainer": ("Trainer",),
        "trainer_seq2seq": ("Seq2SeqTrainer",),
        "training_args": ("OptimizerNames", "ParallelMode", "TrainingArguments"),
        "training_args_seq2seq": ("Seq2SeqTrainingArguments",),
        "trainer_callback": (
            "CallbackHandler",
            "DefaultFlowCallback",
            "EarlyStoppingCallback",
            "ExportableState",
            "PrinterCallback",
            "ProgressCallback",
            "TrainerCallback",
            "TrainerControl",
            "TrainerState",
        ),
        "trainer_jit_checkpoint": ("JITCheckpointCallback",),
        "trainer_utils": (
            "BestRun",
            "EvalLoopOutput",
            "EvalPrediction",
            "FSDPOption",
            "HPSearchBackend",
            "HubStrategy",
            "IntervalStrategy",
            "PredictionOutput",
            "SaveStrategy",
            "SchedulerType",
            "TrainOutput",
            "get_last_checkpoint",
        ),
        "trainer_pt_utils": ("AcceleratorConfig",),
        "hf_argparser": ("HfArg", "HfArgumentParser"),
        "debug_utils": ("DebugOption",),
        "utils.notebook": ("NotebookProgressCallback",),
    }
)
"""The names that `hexloop.takeover` replaces, by the module of transformers that defines them."""

EQUIVALENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trainer_utils": (
            "default_compute_objective",
            "default_hp_space_optuna",
            "default_hp_space_ray",
            "default_hp_space_wandb",
            "enable_full_determinism",
            "set_seed",
        ),
        "integrations.integration_utils": ("hp_params",),
        "optimization": (
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
        ),
        "data.data_collator": ("DataCollatorWithPadding", "DefaultDataCollator", "default_data_collator"),
    }
)
"""Further names that hexloop defines, with the results of transformers' own.

`hexloop.transformers` has them so that they work without transformers. A takeover leaves transformers' in place.
"""

FORMER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": ("TFTrainer", "TFTrainingArguments"),
        "trainer_utils": ("ShardedDDPOption", "default_hp_space_sigopt"),
    }
)
"""Names that transformers has removed, by the module from which scripts import them: hexloop has them all the same."""

PACKAGE = "transformers"

HOLDERS = ("", *FAMILY, "optimization", "integrations", "integrations.integration_utils", "trainer_optimizer")
"""The modules of transformers whose names of the family are replaced, also where they only import them."""

STAND_INS = (
    *("", *FAMILY, "optimization", "integrations", "integrations.integration_utils"),
    *("data", "data.data_collator", "trainer_optimizer", "utils"),
)
"""The modules of transformers for which `hexloop.transformers` has a module of the same name."""

TRACKERS = "integrations.integration_utils"
"""The module of transformers whose callbacks, one per tracker, hexloop's Trainer accepts."""

FAMILY_NAMES = frozenset(name for names in FAMILY.values() for name in names)
OWN_NAMES = FAMILY_NAMES | {name for table in (EQUIVALENTS, FORMER) for names in table.values() for name in names}


def module_name(relative: str, package: str = PACKAGE) -> str:
    """Return the full name of a module that the tables above name relative to its package."""
    return f"{package}.{relative}" if relative else package


def relative_name(module: str) -> str:
    """Return the name of a module of transformers, relative to its package."""
    return module.removeprefix(PACKAGE).lstrip(".")


def is_tested(version: str) -> bool:
    """Return whether a release of transformers, such as "5.23.0", is in the tested range."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    return len(numbers) == 2 and TESTED[0] <= (numbers[0], numbers[1]) <= TESTED[1]


# Names that transformers has removed, and that scripts may still import: each says what to use instead


def _refuse(name: str, because: str, remedy: str) -> NoReturn:
    raise ConfigurationError(Problem(f"{name} is a name of earlier releases: {because}; {remedy}.", kind=ImportError))


class TFTrainer:
    """The Trainer of TensorFlow models, which can be imported but not made.

    Args:
        *args: ignored.
        **kwargs: ignored.

    Raises:
        ConfigurationError: which is also an ImportError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("TFTrainer", "it trained TensorFlow models", "train a model of torch with Trainer")


class TFTrainingArguments:
    """The arguments of TFTrainer, which can be imported but not made.

    Args:
        *args: ignored.
        **kwargs: ignored.

    Raises:
        ConfigurationError: which is also an ImportError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("TFTrainingArguments", "they were for TensorFlow models", "use TrainingArguments")


def default_hp_space_sigopt(trial: Any) -> NoReturn:
    """Raise ConfigurationError, which is also an ImportError: SigOpt's service has ended.

    Args:
        trial: ignored.
    """
    _refuse(
        "default_hp_space_sigopt", "SigOpt's service has ended", "search with optuna, and its default_hp_space_optuna"
    )
