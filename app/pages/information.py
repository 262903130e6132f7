"""What a run has recorded of the machine, the code and the sizes that it was started with, as bounded plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from hexloop.app.series import MOST_STEPS

LONGEST_TEXT = 200
"""Characters of a text that are kept."""

MOST_PACKAGES = 1_000
"""How many packages are kept."""


@frozen
class RecordedInformation:
    """The facts of the last start of a run. Texts are empty and counts None if they are not known.

    host, system, python: of the machine and the interpreter. processor: its name. cpus, memory: of the machine, the
    latter in bytes. device, devices: the name of a rank's device, and how many ranks there are.
    commit, branch: of the git repository that the script is in. changed_files: how many of its files differ from the
    commit; those that git does not track are not counted.
    packages: versions by the names of distributions.
    model: its class. parameters, trainable_parameters: how many numbers it has. model_bytes: what they take.
    training_samples, evaluation_samples: of the data sets.
    """

    host: str = ""
    system: str = ""
    python: str = ""
    processor: str = ""
    cpus: int | None = None
    memory: int | None = None
    device: str = ""
    devices: int | None = None
    commit: str = ""
    branch: str = ""
    changed_files: int | None = None
    packages: Mapping[str, str] = field(factory=dict)
    model: str = ""
    parameters: int | None = None
    trainable_parameters: int | None = None
    model_bytes: int | None = None
    training_samples: int | None = None
    evaluation_samples: int | None = None

    @property
    def code(self) -> str:
        """The state of the code in words; empty if it is not in a git repository."""
        if not self.commit:
            return ""
        of_branch = f" ({self.branch})" if self.branch else ""
        if self.changed_files is None:
            return f"{self.commit[:12]}{of_branch}"
        changes = f"{self.changed_files:,} changed file{'s' * (self.changed_files != 1)}"
        return f"{self.commit[:12]}{of_branch}, {changes if self.changed_files else 'no changed file'}"


def information_in(note: Mapping[str, Any]) -> RecordedInformation:
    """Return the facts of a note of the kind "information". Those of an unexpected type are left out."""
    host, git, model, data = (_part(note, name) for name in ("host", "git", "model", "data"))
    packages = _part(note, "packages")
    return RecordedInformation(
        host=_text(host, "name"),
        system=_text(host, "system"),
        python=_text(host, "python"),
        processor=_text(host, "processor"),
        cpus=_count(host, "cpus"),
        memory=_count(host, "memory"),
        device=_text(host, "device"),
        devices=_count(host, "devices"),
        commit=_text(git, "commit"),
        branch=_text(git, "branch"),
        changed_files=_count(git, "changed_files"),
        packages={
            str(name)[:LONGEST_TEXT]: version[:LONGEST_TEXT]
            for name, version in list(packages.items())[:MOST_PACKAGES]
            if isinstance(version, str)
        },
        model=_text(model, "name"),
        parameters=_count(model, "parameters"),
        trainable_parameters=_count(model, "trainable_parameters"),
        model_bytes=_count(model, "bytes"),
        training_samples=_count(data, "training_samples"),
        evaluation_samples=_count(data, "evaluation_samples"),
    )


def _part(note: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = note.get(name)
    return value if isinstance(value, Mapping) else {}


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part.get(name)
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def _count(part: Mapping[str, Any], name: str) -> int | None:
    value = part.get(name)
    return value if type(value) is int and 0 <= value < MOST_STEPS else None
