"""What a logger receives, as entries of a spool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from attrs import asdict, evolve, fields

from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel, Value
from hexloop.ports.spool import Entry

Item: TypeAlias = Record | SavedModel | Outcome

KINDS: Mapping[str, type[Any]] = {"record": Record, "model": SavedModel, "outcome": Outcome}

ENDINGS = ("finished", "failed", "stopped", "preempted")

LONGEST_TEXT = 10_000
"""Characters of a logged value that is not a number, if it must be written to the spool."""


def entry_of(item: Item, to: Collection[str] | None = None) -> Entry:
    """Return an item as an entry. to: the names of the loggers that receive it; None for all."""
    entry: dict[str, Any]
    if isinstance(item, Record):  # by far the most frequent
        entry = {"item": "record", "step": item.step, "epoch": item.epoch, "values": _plain_values(item.values)}
    elif isinstance(item, SavedModel):
        entry = {"item": "model", **asdict(item, recurse=False), "metrics": _plain_values(item.metrics)}
    else:
        entry = {"item": "outcome", **asdict(item)}
    return entry if to is None else {**entry, "to": sorted(to)}


def _plain_values(values: Mapping[str, Any]) -> dict[str, Value]:
    return {str(name): value if type(value) is float else plain(value) for name, value in values.items()}


def plain(value: object) -> Value:
    """Return a logged value as JSON can hold it: scalars of other libraries become numbers, anything else text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str):
        try:
            return float(value)  # type: ignore[arg-type]  # a scalar of torch or numpy, or the error is caught
        except (TypeError, ValueError, RuntimeError):
            pass
    return str(value)[:LONGEST_TEXT]


def item_of(entry: Entry) -> Item | None:
    """Return the item of an entry; None if it is not one, as in a file that was changed by hand."""
    kind = KINDS.get(str(entry.get("item")))
    if kind is None:
        return None
    known = {each.name for each in fields(kind)}
    try:
        item = kind(**{name: value for name, value in entry.items() if name in known})
    except TypeError:
        return None
    return item if _is_sound(item) else None


def _is_sound(item: Item) -> bool:
    if isinstance(item, Outcome):
        return item.kind in ENDINGS and isinstance(item.problem, str)
    numbers = type(item.step) is int and type(item.epoch) in (int, float)
    if isinstance(item, Record):
        return numbers and isinstance(item.values, dict)
    return numbers and isinstance(item.metrics, dict) and isinstance(item.folder, str) and isinstance(item.name, str)


def is_for(entry: Entry, name: str) -> bool:
    """Return whether the logger of this name receives an entry."""
    to = entry.get("to")
    return not isinstance(to, list) or name in to


def remains(entry: Entry, step: int) -> bool:
    """Return whether an entry still holds in a run that resumes at a step: none that was later, and no end."""
    item = item_of(entry)
    return isinstance(item, Record | SavedModel) and item.step <= step and not getattr(item, "final", False)


def run_entry(run: RunInformation) -> Entry:
    """Return what describes a run as JSON, without its live model."""
    return {name: value for name, value in asdict(run, recurse=False).items() if name != "model"}


def run_of(entry: object) -> RunInformation | None:
    """Return the description of a run that `run_entry` made; None if it is none."""
    known = {each.name for each in fields(RunInformation)} - {"model"}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return None
    run = RunInformation(**{name: value for name, value in entry.items() if name in known})
    texts = run.run, run.folder, run.tracked_as, run.chosen_name, run.trial, run.group
    configurations = run.configuration, run.model_configuration, run.adapter_configuration, run.trial_parameters
    sound = all(each is None or isinstance(each, str) for each in texts) and type(run.step) is int
    if not sound or not all(isinstance(each, Mapping) for each in configurations):
        return None
    return evolve(run, model=None)
