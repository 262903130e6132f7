"""What a search returns, its default objective and search spaces, with the names of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.domain.wording import Problem


class BestRun(NamedTuple):
    """The best trial of a search.

    Args:
        run_id: its number, or what else its library calls it; its folder is `run-<run_id>` unless `hp_name` names it.
        objective: its value, or a list of values for several objectives.
        hyperparameters: what the search space returned, by argument.
        run_summary: the library's own result, such as optuna's study; None if there is none.
    """

    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, Any]
    run_summary: Any | None = None


def default_compute_objective(metrics: Mapping[str, float]) -> float:
    """Return `eval_loss` if there is no other metric, and otherwise the sum of the others, without epoch and speed.

    Source: transformers 5.

    Args:
        metrics: the metrics of an evaluation.
    """
    others = {
        name: value
        for name, value in metrics.items()
        if name not in ("eval_loss", "epoch") and not name.endswith(("_runtime", "_per_second"))
    }
    return sum(others.values()) if others else metrics["eval_loss"]


def hp_params(trial: Any) -> Any:
    """Return the values of a trial by name: those that a trial of optuna has drawn, or the dictionary that it is.

    Args:
        trial: a trial of optuna, or a dictionary.

    Raises:
        RuntimeError: for anything else.
    """
    if isinstance(trial, dict):
        return trial
    params = getattr(trial, "params", None)
    if isinstance(params, dict):
        return params
    raise RuntimeError(f"Unknown type for trial {type(trial)}; a trial is one of optuna, or a dictionary.")


# Search spaces, with the ranges of transformers 5

EPOCHS, SEEDS, BATCH_SIZES = 5, 40, (4, 8, 16, 32, 64)


def default_hp_space_optuna(trial: Any) -> dict[str, Any]:
    """Return a learning rate from 1e-6 to 1e-4, 1 to 5 epochs, a seed and a batch size, drawn from a trial.

    It also works for searches at random.

    Args:
        trial: what values are drawn from.
    """
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, EPOCHS),
        "seed": trial.suggest_int("seed", 1, SEEDS),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", list(BATCH_SIZES)),
    }


def default_hp_space_ray(trial: Any) -> dict[str, Any]:
    """Return the distributions of ray for the same ranges.

    The seed is a whole number, where transformers draws a fraction and cuts it.

    Args:
        trial: ignored.

    Raises:
        ConfigurationError: also an ImportError, without ray.
    """
    try:
        from ray import tune
    except ImportError as error:
        message = f"default_hp_space_ray needs ray, which is not installed; {how_to_install('ray')}."
        raise ConfigurationError(Problem(message, kind=ImportError)) from error
    return {
        "learning_rate": tune.loguniform(1e-6, 1e-4),
        "num_train_epochs": tune.choice(list(range(1, EPOCHS + 1))),
        "seed": tune.randint(1, SEEDS + 1),
        "per_device_train_batch_size": tune.choice(list(BATCH_SIZES)),
    }


def default_hp_space_wandb(trial: Any) -> dict[str, Any]:
    """Return the configuration of a sweep at random, with a uniform learning rate and up to 6 epochs.

    Args:
        trial: ignored.
    """
    return {
        "method": "random",
        "metric": {"name": "objective", "goal": "minimize"},
        "parameters": {
            "learning_rate": {"distribution": "uniform", "min": 1e-6, "max": 1e-4},
            "num_train_epochs": {"distribution": "int_uniform", "min": 1, "max": EPOCHS + 1},
            "seed": {"distribution": "int_uniform", "min": 1, "max": SEEDS},
            "per_device_train_batch_size": {"values": list(BATCH_SIZES)},
        },
    }
