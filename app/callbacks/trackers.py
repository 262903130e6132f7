"""The trackers that `report_to` can name, and a callback for each, by the names and with the methods of transformers'.

The run passes logs and models to trackers by itself, in the background. A method that a subclass overrides is called as
that of any callback, in the user's thread; the standard version that it may call does what the run would have done.

To add a tracker, add a file to `hexloop.adapters.logger`, and a row and a class here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol

from attrs import frozen

from hexloop.app.callbacks.base import TrainerCallback, passive
from hexloop.app.engines import plugin_names
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.domain.wording import Problem
from hexloop.ports.logger import Logger, Record


@frozen
class Tracker:
    """A row of the table.

    adapter: where the Logger adapter is, as "module:class". modules: those of which one must be installed; none if the
    adapter needs nothing. in_all: whether `report_to="all"` may choose it. is_local: whether it writes to files in
    `output_dir`, which must be a local folder. on_each_machine: whether the first process of each machine logs to it,
    and not only that of the run.
    """

    adapter: str
    modules: tuple[str, ...]
    in_all: bool = True
    is_local: bool = False
    on_each_machine: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions of the modules."""
        return tuple(name.replace(".", "-") for name in self.modules)


def _row(name: str, kind: str, *modules: str, **more: bool) -> tuple[str, Tracker]:
    return name, Tracker(f"hexloop.adapters.logger.{name}:{kind}", modules, **more)


TRACKERS: dict[str, Tracker] = dict([
    _row("azure_ml", "AzureML", "azureml.core"),
    _row("clearml", "ClearML", "clearml"),
    _row("codecarbon", "CodeCarbon", "codecarbon", is_local=True, on_each_machine=True),
    _row("comet_ml", "CometML", "comet_ml"),
    _row("dagshub", "DagsHub", "dagshub"),
    _row("dvclive", "DVCLive", "dvclive", is_local=True),
    _row("flyte", "Flyte", "flytekit", in_all=False),
    _row("kubeflow", "Kubeflow"),
    _row("mlflow", "MLflow", "mlflow"),
    _row("neptune", "Neptune", "neptune"),
    _row("swanlab", "SwanLab", "swanlab"),
    _row("tensorboard", "TensorBoard", "tensorboard", "tensorboardX", is_local=True),
    _row("trackio", "Trackio", "trackio"),
    _row("wandb", "Wandb", "wandb"),
])  # fmt: skip
"""The trackers by the names that transformers gives them, which are also those of hexloop's extras."""


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
    package = " or ".join(TRACKERS[name].packages)
    problem = (
        f"{subject} cannot be used: the package {package} is not installed; "
        f"{how_to_install(name)}, choose another tracker, or pass loggers=[...] to the Trainer."
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


class TrackedRun(Protocol):
    """What a live run does for the callback of a tracker."""

    def set_up(self) -> None:
        """Start the logger if it is not, and wait until it has started, for a bounded time."""

    def write(self, record: Record) -> None:
        """Pass a record to the logger, in the background."""

    def take_models(self) -> None:
        """Pass the checkpoint that is being saved to the logger, once it is published."""


class TrackerCallback(TrainerCallback):
    """Base of the callbacks of trackers. The arguments of the constructor are those of the Logger adapter.

    Args:
        *values: the arguments of the Logger adapter.
        **options: the keyword arguments of the Logger adapter.

    Attributes:
        tracker_name: its name in `report_to`.
        logger: the Logger adapter, made by the Trainer; None before, and in all processes but the first.
        tracked_run: what a live run does for this callback; None between runs.
        tracked: what the logger returned for the last run, by that run's name.

    Raises:
        ConfigurationError: also of the class that transformers raises, if the tracker's library is not installed.
    """

    tracker_name: ClassVar[str] = ""

    module: ClassVar[tuple[str, str]] = ("", "")
    """An attribute that subclasses of transformers' callback read, and the module that is its value."""

    handle: ClassVar[tuple[str, str]] = ("", "")
    """Another one, and the attribute of the adapter that is its value: what the library calls its run."""

    def __init__(self, *values: Any, **options: Any) -> None:
        problem = missing_package(self.tracker_name, type(self).__name__)
        if problem is not None:
            raise ConfigurationError(problem)
        self.values, self.options = values, options
        self.logger: Logger | None = None
        self.tracked_run: TrackedRun | None = None
        self.tracked: dict[str, str] = {}
        self._initialized = False

    def __getattr__(self, name: str) -> Any:
        attribute, module = type(self).module
        if name == attribute:
            return import_module(module)
        attribute, own = type(self).handle
        if name == attribute:
            return getattr(self.logger, own, None)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes over; it makes a logger of its own."""
        return {**vars(self), "logger": None, "tracked_run": None, "_initialized": False}

    @passive
    def setup(self, args: Any, state: Any, model: Any = None, **kwargs: Any) -> None:
        """Start the tracker's run, and wait until it has started, for a bounded time. No-op between runs.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            model: the model that is trained.
            **kwargs: the other keywords of the event.
        """
        if self.tracked_run is not None:
            self._initialized = True
            self.tracked_run.set_up()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Call `setup`.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            model: the model that is trained.
            **kwargs: the other keywords of the event.
        """
        if not self._initialized:
            self.setup(args, state, model, **kwargs)

    @passive
    def on_log(self, args: Any, state: Any, control: Any, *values: Any, logs: Any = None, **kwargs: Any) -> None:
        """Pass `logs` to the tracker. They may also be given by position.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            logs: the values by name.
            *values: the same, given by position.
            **kwargs: the other keywords of the event.
        """
        if logs is None:
            logs = next((each for each in values if isinstance(each, Mapping)), None)
        if self.tracked_run is not None and logs is not None:
            self.tracked_run.write(Record(state.global_step, state.epoch or 0.0, dict(logs)))

    @passive
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass the checkpoint to the tracker once it is published, if the tracker takes models."""
        if self.tracked_run is not None:
            self.tracked_run.take_models()

    @passive
    def on_train_end(self, args: Any, state: Any, control: Any, *values: Any, **kwargs: Any) -> None:
        """No-op: the run finishes the tracker, however it ends.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            *values: ignored.
            **kwargs: the other keywords of the event.
        """


def replaces(callback: TrackerCallback, method: str) -> bool:
    """Return whether a subclass, or the instance, overrides a method of `TrackerCallback`."""
    standard = getattr(TrackerCallback, method)
    return getattr(getattr(callback, method), "__func__", None) is not standard


class AzureMLCallback(TrackerCallback):
    """Logs to the run of Azure ML that the process is part of."""

    tracker_name = "azure_ml"


class ClearMLCallback(TrackerCallback):
    """Logs to a task of ClearML."""

    tracker_name = "clearml"
    module = ("_clearml", "clearml")
    handle = ("_clearml_task", "_run")


class CodeCarbonCallback(TrackerCallback):
    """Measures the emissions of the run, in the first process of each machine."""

    tracker_name = "codecarbon"
    module = ("_codecarbon", "codecarbon")
    handle = ("tracker", "_run")


class CometCallback(TrackerCallback):
    """Logs to an experiment of Comet."""

    tracker_name = "comet_ml"
    handle = ("_experiment", "_run")


class DagsHubCallback(TrackerCallback):
    """Logs to MLflow at DagsHub, and uploads the output folder."""

    tracker_name = "dagshub"
    module = ("_ml_flow", "mlflow")


class DVCLiveCallback(TrackerCallback):
    """Logs to DVCLive."""

    tracker_name = "dvclive"
    handle = ("live", "_run")


class FlyteCallback(TrackerCallback):
    """Keeps checkpoints and the history of logs in a task of Flyte."""

    tracker_name = "flyte"


class KubeflowCallback(TrackerCallback):
    """Reports progress and metrics to the controller of a Kubeflow job, also between two logs.

    interval: the seconds between two reports of progress.
    """

    tracker_name = "kubeflow"
    interval = 5.0

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self._reported = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the progress, if the last report was some time ago."""
        now = time.monotonic()
        if self.tracked_run is not None and now - self._reported >= self.interval:
            self._reported = now
            self.tracked_run.write(Record(state.global_step, state.epoch or 0.0, {}))


class MLflowCallback(TrackerCallback):
    """Logs to a run of MLflow."""

    tracker_name = "mlflow"
    module = ("_ml_flow", "mlflow")


class NeptuneCallback(TrackerCallback):
    """Logs to a run of Neptune."""

    tracker_name = "neptune"
    handle = ("run", "run")

    @classmethod
    def get_run(cls, trainer: Any) -> Any:
        """Return the run of Neptune of a Trainer.

        Args:
            trainer: the Trainer that has the callback.

        Raises:
            ConfigurationError: if it has no such callback.
        """
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, cls):
                return callback.run
        raise ConfigurationError("The Trainer has no NeptuneCallback; set report_to='neptune', or pass one to it.")


class SwanLabCallback(TrackerCallback):
    """Logs to an experiment of SwanLab."""

    tracker_name = "swanlab"
    module = ("_swanlab", "swanlab")


class TensorBoardCallback(TrackerCallback):
    """Writes event files for TensorBoard.

    Args:
        tb_writer: the writer to use, such as a `SummaryWriter`; by default one in the run's folder.
        **options: the other arguments of the Logger adapter.
    """

    tracker_name = "tensorboard"
    handle = ("tb_writer", "tb_writer")

    def __init__(self, tb_writer: Any = None, **options: Any) -> None:
        super().__init__(**options if tb_writer is None else {**options, "tb_writer": tb_writer})


class TrackioCallback(TrackerCallback):
    """Logs to a run of Trackio."""

    tracker_name = "trackio"
    module = ("_trackio", "trackio")


class WandbCallback(TrackerCallback):
    """Logs to a run of Weights & Biases."""

    tracker_name = "wandb"
    module = ("_wandb", "wandb")


CALLBACKS: dict[str, type[TrackerCallback]] = {kind.tracker_name: kind for kind in TrackerCallback.__subclasses__()}
"""The class for each tracker's name."""


def tracker_callbacks(args: Any) -> list[object]:
    """Return a callback for each tracker that `report_to` names; none in processes that do not log."""
    names = list(args.report_to or ()) if args.should_log else []
    return [CALLBACKS[name]() for name in chosen_trackers(names)]
