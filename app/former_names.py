"""Names that transformers has removed, and that scripts may still import: each says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem


def _refuse(name: str, because: str, remedy: str) -> NoReturn:
    raise ConfigurationError(Problem(f"{name} is a name of earlier releases: {because}; {remedy}.", kind=ImportError))


class TFTrainer:
    """The Trainer of TensorFlow models, which can be imported but not made.

    Raises ConfigurationError, which is also an ImportError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("TFTrainer", "it trained TensorFlow models", "train a model of torch with Trainer")


class TFTrainingArguments:
    """The arguments of TFTrainer, which can be imported but not made.

    Raises ConfigurationError, which is also an ImportError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("TFTrainingArguments", "they were for TensorFlow models", "use TrainingArguments")


def default_hp_space_sigopt(trial: Any) -> NoReturn:
    """Raise ConfigurationError, which is also an ImportError: SigOpt's service has ended."""
    _refuse(
        "default_hp_space_sigopt", "SigOpt's service has ended", "search with optuna, and its default_hp_space_optuna"
    )
