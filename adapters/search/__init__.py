"""Adapters of the Search port: one file for each backend. `SearchOptions` is what each of them is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean


@frozen
class SearchOptions:
    """What a search is made from.

    space: the user's function, which receives a trial and returns the parameters; what it receives and returns is up to
    the backend. directions: "minimize" or "maximize" for each objective. trials: how many are wanted. seed: of the
    proposals. options: the further keywords of `hyperparameter_search`, for the library. name: a name for trials.
    """

    space: Callable[[Any], Any]
    directions: Sequence[str] = ("minimize",)
    trials: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(factory=dict)


@frozen
class ServiceOptions(SearchOptions):
    """What a search is made from whose library runs the trials.

    timeout: in seconds. evaluates: whether trials are evaluated during training. accelerators: how many there are.
    """

    timeout: float | None = None
    evaluates: bool = True
    accelerators: int = 0


def refuse_unknown_options(options: Mapping[str, Any], known: Sequence[str], backend: str) -> None:
    """Raise ConfigurationError, with every problem, for options that a backend does not have."""
    if problems := [
        f"The search backend {backend} has no option {name!r}; {did_you_mean(name, known, 'leave it out')}."
        for name in options
        if name not in known
    ]:
        raise ConfigurationError(problems)
