"""The trackers that `report_to` can name: what each needs, and which are installed.

To add one, add a file to `hexloop.adapters.logger`, a row here, and a class to `hexloop.app.callbacks.trackers`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from attrs import frozen

from hexloop.app.engines import plugin_names
from hexloop.domain.wording import Problem


@frozen
class Tracker:
    """A row of the table.

    adapter: where the Logger adapter is, as "module:class". modules: those of which one must be installed; none if the
    adapter needs nothing. extra: of hexloop, which installs them. packages: to install where there is no extra.
    in_all: whether `report_to="all"` may choose it.
    """

    adapter: str
    modules: tuple[str, ...]
    extra: str
    in_all: bool = True


def _row(name: str, kind: str, *modules: str, in_all: bool = True) -> Tracker:
    return Tracker(f"hexloop.adapters.logger.{name}:{kind}", modules, name, in_all)


TRACKERS: dict[str, Tracker] = {
    "azure_ml": _row("azure_ml", "AzureML", "azureml.core"),
    "clearml": _row("clearml", "ClearML", "clearml"),
    "codecarbon": _row("codecarbon", "CodeCarbon", "codecarbon"),
    "comet_ml": _row("comet_ml", "CometML", "comet_ml"),
    "dagshub": _row("dagshub", "DagsHub", "dagshub"),
    "dvclive": _row("dvclive", "DVCLive", "dvclive"),
    "flyte": _row("flyte", "Flyte", "flytekit", in_all=False),
    "kubeflow": _row("kubeflow", "Kubeflow"),
    "mlflow": _row("mlflow", "MLflow", "mlflow"),
    "neptune": _row("neptune", "Neptune", "neptune"),
    "swanlab": _row("swanlab", "SwanLab", "swanlab"),
    "tensorboard": _row("tensorboard", "TensorBoard", "tensorboard", "tensorboardX"),
    "trackio": _row("trackio", "Trackio", "trackio"),
    "wandb": _row("wandb", "Wandb", "wandb"),
}
"""The trackers by the names that transformers gives them."""

LOCAL_FOLDER = ("tensorboard", "dvclive", "codecarbon")
"""The trackers that write to files in `output_dir`, which must be a local folder."""


def is_installed(name: str) -> bool:
    """Return whether the library of a tracker is installed."""
    modules = TRACKERS[name].modules
    return not modules or any(map(_is_there, modules))


def missing_package(name: str, subject: str) -> Problem | None:
    """Return what to install for a tracker, as an error of the class that transformers raises; None if it is there.

    subject: what needs it, such as "report_to='wandb'".
    """
    if is_installed(name):
        return None
    package = " or ".join(TRACKERS[name].modules)
    problem = (
        f"{subject} cannot be used: the package {package} is not installed. Run `pip install "
        f"'hexloop[{TRACKERS[name].extra}]'`, choose another tracker, or pass loggers=[...] to the Trainer."
    )
    return Problem(problem, ("report_to",), ImportError if name == "flyte" else RuntimeError)


def available_trackers() -> list[str]:
    """Return the trackers that `report_to="all"` chooses: those that are installed, and set up if that can be seen."""
    return [name for name, row in TRACKERS.items() if row.in_all and is_installed(name) and _is_usable(name)]


def chosen_trackers(names: list[str]) -> list[str]:
    """Return the trackers among the names of `report_to`; a package's logger of the same name comes in place of one.

    In a job of Kubeflow, its own tracker is always one of them, as in transformers.
    """
    chosen = available_trackers() if names == ["all"] else [name for name in names if name in TRACKERS]
    chosen += ["kubeflow"] if _is_usable("kubeflow") else []
    return [name for name in dict.fromkeys(chosen) if name not in plugin_names("loggers")]


def _is_usable(name: str) -> bool:
    """Return whether "all" means this tracker, although its library is installed."""
    if name == "comet_ml":
        return bool(os.environ.get("COMET_API_KEY") or _comet_key())
    if name == "mlflow":
        return not _is_true("DISABLE_MLFLOW_INTEGRATION")
    if name == "azure_ml":
        return not is_installed("mlflow")
    if name == "kubeflow":
        return bool(os.environ.get("KUBEFLOW_TRAINER_SERVER_URL")) and not _is_true("DISABLE_KUBEFLOW_INTEGRATION")
    return True


def _comet_key() -> str | None:
    """Return the API key of Comet's own configuration files."""
    from importlib import import_module

    try:
        found: str | None = import_module("comet_ml").config.get_config("comet.api_key")
    except Exception:  # of any release of the library
        return None
    return found


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("TRUE", "1", "ON", "YES", "Y", "T")


def _is_there(module: str) -> bool:
    """Return whether a module can be imported; a folder of its name, such as the one that wandb writes, is not one."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        return False
    return spec is not None and spec.origin is not None
