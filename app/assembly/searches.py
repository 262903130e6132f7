"""The table of search backends, and the choice of one.

To add a backend, add a file to `hexloop.adapters.search` and a row here. An installed package offers one through the
entry point group "hexloop.searches": a function that takes a `SearchOptions` and returns a Search.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from attrs import frozen

from hexloop.adapters.search import SearchOptions, ServiceOptions
from hexloop.app.engines import find_plugin, plugin_names
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.domain.wording import Problem, did_you_mean, enumeration
from hexloop.ports.search import Search, SearchService

__all__ = ["SearchOptions", "ServiceOptions"]
"""An adapter's name that the rest of the app gets from here."""

SPACES = "hexloop.app.search.results"
"""The module of the default search spaces."""


@frozen
class SearchBackend:
    """A row of the table.

    adapter: where the Search adapter is, as "module:class". module: which must be installed; None if the adapter needs
    nothing. package: what pip installs. space: the default search space, a name in `SPACES`. by_default: whether it is
    chosen if the user names none. several: whether it has several objectives. ended: why it cannot be used any more.
    runs: whether it is a SearchService, which runs the trials by itself.
    """

    adapter: str = ""
    module: str | None = None
    package: str = ""
    space: str = "default_hp_space_optuna"
    by_default: bool = False
    several: bool = True
    ended: str = ""
    runs: bool = False


BACKENDS: Mapping[str, SearchBackend] = MappingProxyType(
    {
        "optuna": SearchBackend("hexloop.adapters.search.optuna:OptunaSearch", "optuna", "optuna", by_default=True),
        "ray": SearchBackend(
            *("hexloop.adapters.search.ray:RayService", "ray", "ray[tune]", "default_hp_space_ray"),
            by_default=True,
            several=False,
            runs=True,
        ),
        "wandb": SearchBackend(
            *("hexloop.adapters.search.wandb:WandbService", "wandb", "wandb", "default_hp_space_wandb"),
            by_default=True,
            several=False,
            runs=True,
        ),
        "random": SearchBackend("hexloop.adapters.search.drawing:RandomSearch"),
        "grid": SearchBackend("hexloop.adapters.search.drawing:GridSearch"),
        "sigopt": SearchBackend(ended="SigOpt's service has ended", space="default_hp_space_sigopt"),
    }
)
"""The backends by name. Those that are chosen by default are in their order."""


@frozen
class ChosenBackend:
    """A backend that is installed. name: as the user writes it. space: its default search space.

    service: makes it, if it runs the trials by itself; otherwise `make` does.
    """

    name: str
    make: Callable[[SearchOptions], Search]
    space: Callable[[Any], Any]
    several: bool = True
    service: Callable[[ServiceOptions], SearchService] | None = None


def choose_backend(name: str | None) -> ChosenBackend:
    """Return the backend of a name, or with None the first that is installed among those of transformers.

    Raises ConfigurationError, also a RuntimeError as in transformers, if it is not installed; and for a name that is
    unknown, also a ValueError.
    """
    if name is None:
        name = _default()
    plugin = find_plugin("searches", name)
    if plugin is not None:
        return ChosenBackend(name, plugin, resolve_name(f"{SPACES}:default_hp_space_optuna"))
    row = BACKENDS.get(name)
    if row is None:
        known = [*(each for each, row in BACKENDS.items() if not row.ended), *plugin_names("searches")]
        remedy = did_you_mean(name, known, f"choose {enumeration(map(repr, known), 'or')}.", spell=repr)
        raise ConfigurationError(f"backend={name!r} is not a search backend that hexloop knows; {remedy}")
    if row.ended:
        raise ConfigurationError(
            Problem(f"backend={name!r} cannot be used: {row.ended}; choose 'optuna'.", kind=RuntimeError)
        )
    if not _is_installed(row):
        raise ConfigurationError(
            Problem(
                f"backend={name!r} cannot be used: the package {row.module} is not installed; "
                f"{how_to_install(name)}, or choose backend='random', which needs nothing.",
                kind=RuntimeError,
            )
        )
    adapter, space = resolve_name(row.adapter), resolve_name(f"{SPACES}:{row.space}")
    return ChosenBackend(name, adapter, space, row.several, adapter if row.runs else None)


def _default() -> str:
    """Return the first installed backend of transformers. Raises ConfigurationError, also a RuntimeError, if none."""
    candidates = {name: row for name, row in BACKENDS.items() if row.by_default}
    installed = [name for name, row in candidates.items() if _is_installed(row)]
    if not installed:
        packages = "; ".join(f"for {name}, {how_to_install(name)}" for name in candidates)
        raise ConfigurationError(
            Problem(
                f"No hyperparameter search backend is installed: {packages}. Or choose backend='random' or 'grid', "
                "which need nothing.",
                kind=RuntimeError,
            )
        )
    if len(installed) > 1:
        message = "%d hyperparameter search backends are installed. Using %s; choose another one with backend=..."
        logging.getLogger("hexloop").info(message, len(installed), installed[0])
    return installed[0]


def _is_installed(row: SearchBackend) -> bool:
    try:
        return row.module is None or find_spec(row.module) is not None
    except (ImportError, ValueError):
        return False


def installed_importances(
    parameters: Mapping[str, Sequence[Any]], objective: Sequence[float], direction: str
) -> dict[str, float] | None:
    """Return how much each parameter matters, by a package that is installed; None if there is none, or no result.

    parameters: the values of each in all trials. objective: of these trials.
    """
    if not _is_installed(BACKENDS["optuna"]):
        return None
    evaluate: Callable[..., dict[str, float]] = resolve_name("hexloop.adapters.search.optuna:parameter_importances")
    try:
        return evaluate(parameters, objective, direction)
    except RuntimeError:
        return None
