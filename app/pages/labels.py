"""Tags and notes of a run, which its users give it: a small file in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_json
from hexloop.domain.run_folder import LABELS

SCHEMA = 1

MOST_TAGS, LONGEST_TAG = 20, 50
"""How many tags a run has, and how many characters each."""

LONGEST_NOTES = 4_000
"""Characters of the notes on a run."""

LARGEST = 64 << 10
"""Bytes of the file that are read."""


@frozen
class Labels:
    """What users have written about a run. hidden: whether the list of the runs leaves it out at first."""

    tags: tuple[str, ...] = ()
    notes: str = ""
    hidden: bool = False


def read_labels(folder: str | os.PathLike[str]) -> Labels:
    """Return the labels of the run in a folder; none where there is no file, or one that is not valid."""
    try:
        document = read_json(Folder(os.fspath(folder)).read(LABELS, LARGEST))
    except (OSError, ValueError):
        return Labels()
    return labels_in(document)


def labels_in(document: object) -> Labels:
    """Return the labels in a document, as far as they are valid."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        return Labels()
    tags, notes = document.get("tags"), document.get("notes")
    texts = [each for each in (tags if isinstance(tags, list) else []) if isinstance(each, str)]
    return Labels(
        _sound_tags(texts), notes[:LONGEST_NOTES] if isinstance(notes, str) else "", document.get("hidden") is True
    )


def write_labels(folder: str | os.PathLike[str], labels: Labels) -> None:
    """Write the labels of the run in a folder, completely or not at all. Raises OSError."""
    document = {"schema": SCHEMA, "tags": list(labels.tags), "notes": labels.notes, "hidden": labels.hidden}
    Folder(os.fspath(folder)).replace(LABELS, json.dumps(document).encode())


@frozen
class LabelChange:
    """What a user changes of the labels of some runs; None leaves the notes, or whether a run is hidden, as it is."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    notes: str | None = None
    hidden: bool | None = None

    def applied_to(self, labels: Labels) -> Labels:
        """Return the labels with the change."""
        kept = [each for each in labels.tags if each not in self.remove]
        return Labels(
            _sound_tags([*kept, *self.add]),
            labels.notes if self.notes is None else self.notes,
            labels.hidden if self.hidden is None else self.hidden,
        )


def change_in(document: Mapping[str, Any]) -> LabelChange:
    """Return the change that a document asks for. Raises ConfigurationError for anything else."""
    add, remove, notes, hidden = (document.get(name) for name in ("add", "remove", "notes", "hidden"))
    if not document.keys() <= {"add", "remove", "notes", "hidden"}:
        raise ConfigurationError("Labels are changed by add, remove, notes and hidden.")
    for tags in (add, remove):
        if not isinstance(tags, list | None) or not all(isinstance(each, str) for each in tags or []):
            raise ConfigurationError("The tags to add or to remove are not a list of texts.")
    if not isinstance(notes, str | None) or not isinstance(hidden, bool | None):
        raise ConfigurationError("The notes are not a text, or hidden is not true or false.")
    for tag in add or []:
        if not tag.strip() or len(tag) > LONGEST_TAG or not tag.isprintable() or "," in tag:
            raise ConfigurationError(
                f"The tag {tag!r:.80} has no characters, more than {LONGEST_TAG}, a comma, or control characters; "
                "choose a short text."
            )
    if notes is not None and len(notes) > LONGEST_NOTES:
        raise ConfigurationError(f"The notes have {len(notes):,} characters, more than {LONGEST_NOTES:,}; shorten them.")
    added, removed = (tuple(each.strip() for each in tags or []) for tags in (add, remove))
    return LabelChange(added, removed, notes, hidden)


def change_labels(folder: Path, change: LabelChange) -> Labels:
    """Change the labels of the run in a folder, and return them. Raises ConfigurationError if that fails."""
    changed = change.applied_to(read_labels(folder))
    if len({*read_labels(folder).tags, *change.add} - {*change.remove}) > MOST_TAGS:
        raise ConfigurationError(f"A run has at most {MOST_TAGS} tags; remove some of them first.")
    try:
        write_labels(folder, changed)
    except OSError as error:
        raise ConfigurationError(
            f"The labels cannot be written to {folder / LABELS} ({error.strerror or error}). To label the run, this "
            "user must be able to write there."
        ) from error
    return changed


def _sound_tags(tags: Iterable[str]) -> tuple[str, ...]:
    found = (each.strip()[:LONGEST_TAG] for each in tags)
    return tuple(dict.fromkeys(each for each in found if each and each.isprintable()))[:MOST_TAGS]
