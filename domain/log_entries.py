"""What a logger receives, as entries of a spool."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from attrs import asdict, evolve, fields

from hexloop.domain.media import media_entry, media_of
from hexloop.ports.logger import Entry, Media, Outcome, Record, RunInformation, SavedModel, Value

Item: TypeAlias = Record | SavedModel | Media | Outcome

KINDS: Mapping[str, type[Any]] = {"record": Record, "model": SavedModel, "outcome": Outcome}

ENDINGS = ("finished", "failed", "stopped", "preempted")

LARGEST_STEP = 1 << 53
"""A step beyond it is not one."""

LARGEST_BITS = 1000
"""Bits of a whole number, which a float can still hold."""

LONGEST_NAME = 4096
"""Characters of a text that describes a run."""

LONGEST_IDENTIFIER = 1000
"""Characters of what identifies a run for a logger."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

LONGEST_TEXT = 10_000
"""Characters of a logged value that is not a number, if it must be written to the spool."""


def entry_of(item: Item, to: Collection[str] | None = None) -> Entry:
    """Return an item as an entry.

    Args:
        item: a record, a medium, a model, or the end.
        to: the names of the loggers that receive it; None for all.
    """
    entry: dict[str, Any]
    if isinstance(item, Record):  # by far the most frequent
        entry = {"item": "record", "step": item.step, "epoch": item.epoch, "values": _plain_values(item.values)}
    elif isinstance(item, Media):
        entry = {"item": "media", **media_entry(item)}
    elif isinstance(item, SavedModel):
        entry = {"item": "model", **asdict(item, recurse=False), "metrics": _plain_values(item.metrics)}
    else:
        entry = {"item": "outcome", **asdict(item)}
    return entry if to is None else {**entry, "to": sorted(to)}


def _plain_values(values: Mapping[str, Any]) -> dict[str, Value]:
    return {str(name): value if type(value) is float else plain(value) for name, value in values.items()}


def plain(value: object) -> Value:
    """Return a logged value as JSON can hold it: scalars of other libraries become numbers, anything else text.

    Args:
        value: what was logged.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str):
        try:
            return float(value)  # type: ignore[arg-type]  # a scalar of torch or numpy, or the error is caught
        except (TypeError, ValueError, RuntimeError):
            pass
    return str(value)[:LONGEST_TEXT]


def item_of(entry: Entry) -> Item | None:
    """Return the item of an entry; None if it is not one, as in a file that was changed by hand.

    Args:
        entry: an item as JSON.
    """
    if entry.get("item") == "media":
        return media_of(entry)
    kind = KINDS.get(str(entry.get("item")))
    if kind is None:
        return None
    known = {each.name for each in fields(kind)}
    try:
        item = kind(**{name: value for name, value in entry.items() if name in known})
    except TypeError:
        return None
    if isinstance(item, Outcome):
        return item if item.kind in ENDINGS and isinstance(item.problem, str) else None
    if type(item.step) is not int or not 0 <= item.step < LARGEST_STEP:
        return None
    if type(item.epoch) not in (int, float) or not 0 <= item.epoch < LARGEST_STEP:
        return None
    if isinstance(item, Record):
        return item if isinstance(item.values, dict) and _only_plain(item.values) else None
    return item if _is_model(item) and _only_plain(item.metrics) else None


def _is_model(item: SavedModel) -> bool:
    names = isinstance(item.folder, str) and isinstance(item.name, str) and _MODEL_NAME.fullmatch(item.name)
    return bool(names) and type(item.final) is bool and type(item.best) is bool and isinstance(item.metrics, dict)


def _only_plain(values: Mapping[str, Any]) -> bool:
    """Return whether all values are what `plain` returns."""
    return all(
        type(value) in (float, bool, type(None))
        or (type(value) is int and value.bit_length() < LARGEST_BITS)
        or (type(value) is str and len(value) <= LONGEST_TEXT)
        for value in values.values()
    )


def is_for(entry: Entry, name: str) -> bool:
    """Return whether the logger of this name receives an entry.

    Args:
        entry: an item as JSON.
        name: the name of the logger.
    """
    to = entry.get("to")
    return not isinstance(to, list) or name in to


def remains(entry: Entry, step: int) -> bool:
    """Return whether an entry still holds in a run that resumes at a step: none that was later, and no end.

    Args:
        entry: an item as JSON.
        step: that at which the run resumes.
    """
    item = item_of(entry)
    return isinstance(item, Record | SavedModel | Media) and item.step <= step and not getattr(item, "final", False)


def run_entry(run: RunInformation) -> Entry:
    """Return what describes a run as JSON, without its live model.

    Args:
        run: what describes the run.
    """
    return {name: value for name, value in asdict(run, recurse=False).items() if name != "model"}


def run_of(entry: object) -> RunInformation | None:
    """Return the description of a run that `run_entry` made; None if it is none.

    Args:
        entry: an item as JSON.
    """
    known = {each.name for each in fields(RunInformation)} - {"model"}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return None
    run = RunInformation(**{name: value for name, value in entry.items() if name in known})
    texts = run.run, run.folder, run.tracked_as, run.chosen_name, run.trial, run.group
    counts = run.total_steps, run.parameters, run.trainable_parameters
    configurations = run.configuration, run.model_configuration, run.adapter_configuration, run.trial_parameters
    sound = all(map(_is_text, texts)) and len(run.name) <= LONGEST_NAME and type(run.step) is int
    sound = sound and all(each is None or type(each) is int for each in counts)
    if not sound or not _is_identifier(run.tracked_as) or not all(isinstance(each, Mapping) for each in configurations):
        return None
    return evolve(run, model=None)


def _is_text(value: object) -> bool:
    """Return whether a value is a short text, or None."""
    return value is None or (isinstance(value, str) and len(value) <= LONGEST_NAME)


def _is_identifier(value: str | None) -> bool:
    return value is None or (len(value) <= LONGEST_IDENTIFIER and not _CONTROL.search(value))
