"""What a run has recorded of the machine, the code and the sizes that it was started with, as bounded plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, fields, frozen

from hexloop.app.series import MOST_STEPS

LONGEST_TEXT = 200
"""Characters of a text that are kept."""

MOST_PACKAGES = 1_000
"""How many packages are kept."""

PATH = "path"
"""The key of the metadata of a fact that says where it is in a note: the part and the name within, with a dot."""


def _text(path: str) -> Any:
    return field(default="", metadata={PATH: path})


def _count(path: str) -> Any:
    return field(default=None, metadata={PATH: path})


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

    host: str = _text("host.name")
    system: str = _text("host.system")
    python: str = _text("host.python")
    processor: str = _text("host.processor")
    cpus: int | None = _count("host.cpus")
    memory: int | None = _count("host.memory")
    device: str = _text("host.device")
    devices: int | None = _count("host.devices")
    commit: str = _text("git.commit")
    branch: str = _text("git.branch")
    changed_files: int | None = _count("git.changed_files")
    packages: Mapping[str, str] = field(factory=dict)
    model: str = _text("model.name")
    parameters: int | None = _count("model.parameters")
    trainable_parameters: int | None = _count("model.trainable_parameters")
    model_bytes: int | None = _count("model.bytes")
    training_samples: int | None = _count("data.training_samples")
    evaluation_samples: int | None = _count("data.evaluation_samples")

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
    found: dict[str, Any] = {
        "packages": {
            str(name)[:LONGEST_TEXT]: version[:LONGEST_TEXT]
            for name, version in list(_part(note, "packages").items())[:MOST_PACKAGES]
            if isinstance(version, str)
        }
    }
    for each in fields(RecordedInformation):
        if path := each.metadata.get(PATH):
            part, _, name = path.partition(".")
            value = _part(note, part).get(name)
            if each.default == "" and isinstance(value, str):
                found[each.name] = value[:LONGEST_TEXT]
            elif each.default is None and type(value) is int and 0 <= value < MOST_STEPS:
                found[each.name] = value
    return RecordedInformation(**found)


def _part(note: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = note.get(name)
    return value if isinstance(value, Mapping) else {}
