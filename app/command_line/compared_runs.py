"""The two runs that `hexloop why` compares: what their folders hold, read as data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from attrs import define, field

from hexloop.app.assembly.adapters import line_batches
from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.assembly.storage import is_elsewhere, storage_for
from hexloop.app.command_line.runs import JournalSide, read_together
from hexloop.domain.checkpoints.manifest import MANIFEST, Manifest
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.checkpoints.selection import readable_manifests
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.journal import Timeline
from hexloop.domain.json_documents import read_json
from hexloop.domain.run_folder import JOURNAL
from hexloop.ports.logger import Fact

INFORMATION = b'{"kind": "information", '
"""The start of a line of a journal that has the versions of packages."""

MOST_PACKAGES, LONGEST_NAME = 2_000, 200
"""How many packages are compared, and characters of a name or a version."""


@define
class Side:
    """One of the two runs. given: as the user named it. missing: what it lacks, a sentence each."""

    given: str
    folder: str
    timeline: Timeline | None = None
    manifests: dict[int, tuple[str, Manifest]] = field(factory=dict)
    packages: Mapping[str, str] = field(factory=dict)
    missing: list[str] = field(factory=list)

    @property
    def settings(self) -> Mapping[str, Fact]:
        """The recorded arguments."""
        return {} if self.timeline is None else self.timeline.settings

    @property
    def newest(self) -> Manifest | None:
        """The manifest of the last checkpoint."""
        return self.manifests[max(self.manifests)][1] if self.manifests else None

    @property
    def processes(self) -> int:
        """How many processes wrote the last checkpoint; 1 if there is none."""
        return 1 if self.newest is None else self.newest.world_size

    def files(self, step: int) -> tuple[CheckpointFiles, Manifest]:
        """Return the verified files of the checkpoint of a step."""
        name, manifest = self.manifests[step]
        return CheckpointFiles.of(verify(storage_for(self.folder), name)), manifest


def sides_of(one: str, other: str, problems: list[str]) -> tuple[Side, Side]:
    """Return the two runs, and add a problem for each that does not exist."""
    journals = JournalSide(one), JournalSide(other)
    read_together(*journals)
    found = []
    for journal in journals:
        given = journal.given
        path = given if os.path.exists(given) or "@" not in given else given.rpartition("@")[0]
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.dirname(os.path.abspath(path)))
        side = Side(given, folder)
        if problem := _refusal(path):
            problems.append(f"You chose the run {given}, but {problem}.")
        elif journal.failure is not None or not journal.runs.by_name:
            side.missing.append("It has no journal; runs have one unless journal='off' is set.")
        else:
            side.timeline = journal.chosen(problems)
            side.packages = _packages(journal.path)
        found.append(side)
        if not problems:
            _find_checkpoints(side)
    return found[0], found[1]


def _refusal(path: str) -> str:
    """Return why a path is not that of a run, and what to name instead; "" if it may be one."""
    if is_elsewhere(path):
        return "it is not on this machine; copy its folder here"
    if not os.path.exists(path):
        return "there is no such folder; check its name"
    if not os.path.isdir(path) and os.path.basename(path) != os.path.basename(JOURNAL):
        return "it is a file that is not a journal; name the output_dir of a run"
    if os.path.isfile(os.path.join(path, MANIFEST)):
        folder = os.path.dirname(os.path.normpath(path)) or "."
        return f"it is a checkpoint; name the folder of its run, {folder}, or use `hexloop checkpoints diff`"
    return ""


def _find_checkpoints(side: Side) -> None:
    """Note the checkpoints of the run; of the last one in the folder, if its journal does not tell the name."""
    try:
        manifests = readable_manifests(storage_for(side.folder))
    except (CheckpointError, StorageError) as error:
        side.missing.append(f"Its checkpoints cannot be read: {error}")
        return
    if not manifests:
        side.missing.append("It has no checkpoint.")
        return
    names = {manifest.run for manifest in manifests.values()}
    if side.timeline is not None:
        wanted = side.timeline.run
    elif len(names) == 1:
        (wanted,) = names
    else:
        side.missing.append("Its checkpoints are of several runs.")
        return
    side.manifests = {each.step: (name, each) for name, each in sorted(manifests.items()) if each.run == wanted}


def _packages(journal: str) -> Mapping[str, str]:
    """Return the versions of packages that the last session recorded; of what is not text, or too much, none."""
    found: Mapping[str, str] = {}
    for lines in line_batches(journal):
        for line in lines:
            if line.startswith(INFORMATION):
                with suppress(ValueError):
                    found = _versions(read_json(line))
    return found


def _versions(note: Any) -> dict[str, str]:
    packages = note.get("packages")
    if not isinstance(packages, dict):
        return {}
    texts = ((name, version) for name, version in packages.items() if isinstance(version, str))
    return {name[:LONGEST_NAME]: version[:LONGEST_NAME] for name, version in islice(texts, MOST_PACKAGES)}


def environment_differences(one: Side, other: Side) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what differs in the number of processes, the machine and the packages of two runs."""
    first, second = one.newest, other.newest
    if first is not None and second is not None:
        if first.world_size != second.world_size:
            yield "processes", (str(first.world_size), str(second.world_size))
        for name in sorted(first.environment.keys() | second.environment.keys()):
            values = first.environment.get(name, "unknown"), second.environment.get(name, "unknown")
            if values[0] != values[1]:
                yield name, values
    if one.packages and other.packages:
        for name in sorted(one.packages.keys() | other.packages.keys()):
            versions = one.packages.get(name, "none"), other.packages.get(name, "none")
            if versions[0] != versions[1]:
                yield f"package {name}", versions
