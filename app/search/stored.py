"""The best trial of a search as its folder has it."""

from __future__ import annotations

from typing import Any

from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import read_search
from hexloop.domain.search.selection import best_trials
from hexloop.domain.search.space import SpaceTrial
from hexloop.ports.collectives import Json


def best_recorded(folder: Folder) -> Json:
    """Return the best trial of the search in a folder, as JSON.

    Raises RunStateError if there is none or it has no checkpoint, and CheckpointError if the record cannot be read.
    """
    record = read_search(folder)
    if record is None:
        raise RunStateError(f"There is no search in {folder.location()}; call hyperparameter_search first.")
    best = best_trials(record.trials.values(), record.definition.directions)
    if not best:
        raise RunStateError(f"No trial of the search in {folder.location()} was complete, so there is no best one.")
    if best[0].checkpoint is None:
        raise RunStateError(
            f"The best trial, {best[0].name}, has no checkpoint; search with another save_strategy than 'no', and, if "
            "load_best_model_at_end is not set, with the intervals of evaluations."
        )
    return {
        "number": best[0].number,
        "identifier": best[0].identifier,
        "parameters": dict(best[0].parameters),
        "drawn": dict(best[0].drawn),
        "values": list(best[0].values or ()),
        "checkpoint": best[0].checkpoint,
        "several": len(record.definition.directions) > 1,
    }


def drawn_trial(found: dict[str, Any]) -> SpaceTrial:
    """Return a trial for `model_init`, which has what the recorded one had drawn, and draws nothing else."""

    def refuse(name: str, _distribution: object) -> Any:
        raise ConfigurationError(
            f"model_init draws {name!r}, which the best trial has not drawn; load it with the model_init of the search."
        )

    return SpaceTrial(found["number"], refuse, found["drawn"])
