"""Trials of a search as its folder has them: the best one, and one whose folder is named."""

from __future__ import annotations

import os
from typing import Any

from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import DEEPEST, DEFINITION, RecordedTrial, read_search
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


def recorded_trial(path: str) -> tuple[RecordedTrial, str]:
    """Return a trial and its folder. path: of that folder, or of a search, which stands for its best trial.

    Raises ConfigurationError if there is no such trial, and CheckpointError if the record cannot be read.
    """
    root, name = os.path.abspath(path), ""
    for _ in range(DEEPEST + 1):
        if os.path.lexists(os.path.join(root, DEFINITION)):
            break
        root, inner = os.path.split(root)
        name = f"{inner}/{name}" if name else inner
    record = read_search(Folder(root))
    if record is None:
        raise ConfigurationError(
            f"You chose the trial {path}, but that is not in the folder of a search; name one, such as runs/search, or "
            "the folder of a trial in it."
        )
    trials = list(record.trials.values())
    best = best_trials(trials, record.definition.directions)
    found = next((each for each in trials if each.name == name), None) if name else next(iter(best), None)
    if found is None:
        because = "the search has no such trial" if name else "no trial of the search was complete"
        raise ConfigurationError(f"You chose the trial {path}, but {because}; name the folder of another one.")
    return found, os.path.join(root, *found.name.split("/"))


def drawn_trial(found: dict[str, Any]) -> SpaceTrial:
    """Return a trial for `model_init`, which has what the recorded one had drawn, and draws nothing else."""

    def refuse(name: str, _distribution: object) -> Any:
        raise ConfigurationError(
            f"model_init draws {name!r}, which the best trial has not drawn; load it with the model_init of the search."
        )

    return SpaceTrial(found["number"], refuse, found["drawn"])
