"""Trackers that transformers brings as callbacks: by their names in `report_to`, until hexloop has its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from importlib.util import find_spec
from typing import Any

from hexloop.app.callbacks.base import EVENTS
from hexloop.app.engines import plugin_names
from hexloop.domain.wording import Problem

TRACKERS = {
    "azure_ml": ("azureml.core", "azureml-sdk"),
    "clearml": ("clearml", "clearml"),
    "codecarbon": ("codecarbon", "codecarbon"),
    "comet_ml": ("comet_ml", "comet_ml"),
    "dagshub": ("dagshub", "dagshub mlflow"),
    "dvclive": ("dvclive", "dvclive"),
    "flyte": ("flytekit", "flytekit"),
    "mlflow": ("mlflow", "mlflow"),
    "neptune": ("neptune", "neptune"),
    "swanlab": ("swanlab", "swanlab"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}
"""For each name: the module whose presence is required, and the packages to install."""


def tracker_problem(name: str) -> Problem | None:
    """Return why the tracker `name` cannot be used, and what to do, as an error of transformers' class; else None."""
    module, packages = TRACKERS[name]
    if find_spec("transformers") is None:
        because = "hexloop has no logger for it yet, and transformers, whose callback it can use, is not installed"
        install = f"'hexloop[transformers]' {packages}"
    elif not _is_installed(module):
        because = f"hexloop uses the callback of transformers for it, and the package {packages.split()[0]} is missing"
        install = packages
    elif name not in _callbacks():
        problem = f"report_to={name!r} is a tracker that the installed transformers does not support; choose another."
        return Problem(problem, ("report_to",), RuntimeError)
    else:
        return None
    problem = (
        f"report_to={name!r} cannot be used: {because}. Run `pip install {install}`, choose another tracker, or pass "
        "loggers=[...] to the Trainer."
    )
    return Problem(problem, ("report_to",), ImportError if name == "flyte" else RuntimeError)


def _is_installed(module: str) -> bool:
    """Return whether a module can be imported; a folder of its name, such as the one that wandb writes, is not one."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        return False
    return spec is not None and spec.origin is not None


def available_trackers() -> list[str]:
    """Return the trackers whose packages are installed, with transformers."""
    return [name for name in TRACKERS if tracker_problem(name) is None]


def chosen_trackers(args: Any) -> list[str]:
    """Return the trackers of transformers that `report_to` names; with "all", every one that is installed."""
    names = list(args.report_to or ()) if args.should_log else []
    chosen = available_trackers() if names == ["all"] else [name for name in names if name in TRACKERS]
    return [name for name in chosen if name not in plugin_names("loggers")]


def tracker_callbacks(names: Iterable[str]) -> list[object]:
    """Return a callback for each of the trackers `names`.

    A callback that fails is reported once and disabled, and the run continues. One that cannot be made is reported,
    and left out.
    """
    made: list[object] = []
    for name in names:
        try:
            made.append(fail_safe(_callbacks()[name])())
        except Exception as error:  # packages raise any error, such as a failed login
            _warn(name, "start", error)
    return made


def fail_safe(kind: type[Any]) -> type[Any]:
    """Return a subclass of a class of callbacks whose events never raise: the first error disables the callback."""
    overridden = {event: method for event in EVENTS if (method := getattr(kind, event, None)) is not None}
    base = next(each for each in reversed(kind.__mro__) if each is not object)
    members = {
        event: _guarded(event, method)
        for event, method in overridden.items()
        if method is not getattr(base, event, None) or kind is base
    }
    return type(kind.__name__, (kind,), {**members, "__module__": kind.__module__, "_disabled": False})


def _guarded(event: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._disabled:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self._disabled = True
            _warn(type(self).__name__, event, error)
            return None

    return call


def _warn(tracker: str, action: str, error: Exception) -> None:
    warnings.warn(
        f"The tracker {tracker} failed to {action.removeprefix('on_').replace('_', ' ')} ({type(error).__name__}: "
        f"{error}). The run continues without it.",
        stacklevel=4,
    )


def _callbacks() -> dict[str, type[Any]]:
    """Return the callbacks of the installed transformers by the names of their trackers."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    return dict(INTEGRATION_TO_CALLBACK)
