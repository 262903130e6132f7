"""The names of checkpoints and of unfinished folders, the manifest of a checkpoint, and the lineage that it records."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Container, Mapping
from itertools import count
from typing import Annotated, Any

from attrs import field, fields, frozen

from hexloop.domain.errors import DamagedCheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.ranges import Count, Holding, PositiveCount
from hexloop.domain.run_folder import OWN, within_own
from hexloop.domain.schemas import structured
from hexloop.domain.state import Migration, migrate
from hexloop.ports.storage import Storage, Stored

MANIFEST = "manifest.json"
"""The file that makes a folder a checkpoint."""

REASON = "damaged.txt"
"""The file in a quarantined checkpoint that says what was wrong with it."""

PROTECTED = "protected"
"""A file of this name, with any content, protects the checkpoint in whose folder it is from rotation."""

_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]{0,15})")  # up to what a manifest can hold
_OWN = re.escape(OWN)
# Earlier versions of hexloop had these folders beside the checkpoints.
_SET_ASIDE = re.compile(rf"(?:{_OWN}/)?(?:replaced|damaged)-[1-9][0-9]*-checkpoint-[0-9]+")
_UNFINISHED = re.compile(rf"(?:{_OWN}/)?\.unfinished-([0-9a-f]{{16}})-([0-9a-z]+)(?:-(.+))?")


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint at optimizer step `step`."""
    return f"checkpoint-{step}"


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name, or None if it is not the name of a checkpoint."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def folders_of(storage: Storage) -> list[str]:
    """Return the paths of the folders in which checkpoints, and what is no longer or not yet one, can be: sorted."""
    names = [entry.name for entry in storage.list("") if entry.is_folder]
    own = [within_own(entry.name) for entry in storage.list(OWN) if entry.is_folder] if OWN in names else []
    return [*own, *names]


def staged_name(name: str) -> str | None:
    """Return the name of the checkpoint in a staging folder, or None if `name` is not that of a staging folder."""
    match = _UNFINISHED.fullmatch(name)
    return match[3] if match and match[3] and step_of(match[3]) is not None else None


def marks_unfinished(name: str) -> bool:
    """Return whether the name of a folder, or of a file in a folder, marks a checkpoint as unfinished."""
    return _UNFINISHED.fullmatch(name) is not None


def is_set_aside(name: str) -> bool:
    """Return whether a folder has the name of a checkpoint that was quarantined or replaced."""
    return _SET_ASIDE.fullmatch(name) is not None


def is_replaced(name: str) -> bool:
    """Return whether a folder has the name of a checkpoint that one of another run took the name of."""
    return is_set_aside(name) and name.rpartition("/")[2].startswith("replaced-")


def is_mark(name: str) -> bool:
    """Return whether `name` is that of a file that marks the folder it is in as unfinished."""
    match = _UNFINISHED.fullmatch(name)
    return match is not None and match[3] is None


def free_name(name: str, taken: Container[str], reason: str = "replaced") -> str:
    """Return a name that is not among `taken`, for what is no longer `name`."""
    candidates = (f"{reason}-{number}-{name}" for number in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def free_folder(storage: Storage, name: str, reason: str = "replaced") -> str:
    """Return the path of a folder that does not exist, for one that is no longer the checkpoint `name`."""
    return within_own(free_name(name, {entry.name for entry in storage.list(OWN)}, reason))


def may_be_unfinished(name: str) -> bool:
    """Return whether a folder of this name may be one that is being written or removed file by file."""
    return bool(_CHECKPOINT.fullmatch(name) or _SET_ASIDE.fullmatch(name))


def stays_inside(path: str) -> bool:
    """Return whether a path with "/" between names stays within the folder that it is relative to."""
    return "\\" not in path and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def new_session() -> str:
    """Return a unique name for a process's part of a run. The names of later processes sort after it."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


def session_after(session: str, earlier: str) -> str:
    """Return `session`, or a new name if it does not sort after `earlier`: clocks of machines differ."""
    return session if session > earlier else f"{earlier}{secrets.token_hex(4)}"


def _run_digest(run: str) -> str:
    return hashlib.blake2b(run.encode(), digest_size=8).hexdigest()


@frozen
class Owner:
    """The owner of unfinished folders: the session `session` of the run `run`.

    exclusive: no other run saves there, so unfinished folders of every run belong to this owner.
    mark: the start of a staging folder's name, or the name of a file in an unfinished folder; never a checkpoint's.
    """

    run: str
    session: str
    exclusive: bool = False
    mark: str = field(init=False)

    @mark.default
    def _make_mark(self) -> str:
        return f".unfinished-{_run_digest(self.run)}-{self.session}"

    def staging_name(self, name: str) -> str:
        """Return the staging folder of the checkpoint `name`."""
        return within_own(f"{self.mark}-{name}")

    def left_behind(self, name: str) -> bool:
        """Return whether `name` marks something that this run left unfinished, in this session or an earlier one."""
        match = _UNFINISHED.fullmatch(name)
        if match is None or match[2] > self.session:
            return False
        return self.exclusive or match[1] == _run_digest(self.run)


SCHEMA_VERSION = 1

MIGRATIONS: dict[int, Migration] = {}
"""For each earlier schema version, the function that converts its dictionary to the next version."""

MOST_BYTES = 2**63 - 1
"""The largest size of a file."""

FilePath = Annotated[str, Holding("a path within the checkpoint", stays_inside)]
StoredFile = Annotated[Stored, Holding(f"of a size from 0 to {MOST_BYTES}", lambda file: 0 <= file.size <= MOST_BYTES)]


@frozen
class Manifest:
    """The manifest of a checkpoint. A folder with a valid manifest is a checkpoint.

    run, session: the run that wrote it, and the process's part of that run.
    ancestors: for each earlier session that this one continues, the last step that belongs to the lineage.
    parent: the previous checkpoint; None for the first one of a run.
    step: optimizer steps done. world_size: processes that wrote it.
    environment: facts that the exact bits of a result may depend on.
    files: the size and digest of each file, by its path within the folder. Other files do not belong to the checkpoint.
    """

    run: str
    session: str
    ancestors: Mapping[str, Count]
    parent: str | None
    step: Count
    world_size: PositiveCount
    environment: Mapping[str, str]
    files: Mapping[FilePath, StoredFile]

    def to_json(self) -> bytes:
        """Return the manifest as the bytes of a file. Its last entry is the digest of everything before it.

        Raises ValueError if a manifest with its values would not be read.
        """
        document = {each.name: getattr(self, each.name) for each in fields(Manifest)}
        document["files"] = {path: {"digest": each.digest, "size": each.size} for path, each in self.files.items()}
        document |= {"schema_version": SCHEMA_VERSION}
        entries = (f"  {json.dumps(name)}: {_on_lines(value)}" for name, value in sorted(document.items()))
        body = ("{\n" + ",\n".join(entries) + "\n}\n").encode()
        structured(_entries_in(body), Manifest)
        return seal(body)

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Return the manifest in a file's bytes.

        Raises DamagedCheckpointError if the bytes have changed or are not a manifest, and NewerSchemaError if a newer
        hexloop wrote it.
        """
        body = unseal(data)
        try:
            return structured(_entries_in(body), cls)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedCheckpointError(f"its manifest is invalid ({error})") from error


def _entries_in(body: bytes) -> dict[str, Any]:
    """Return the entries of a manifest without its digest, as this version writes them."""
    document: dict[str, Any] = migrate(read_json(body), MIGRATIONS, SCHEMA_VERSION)
    del document["schema_version"]
    return document


@frozen
class Lineage:
    """The sessions of a run that led to its present state: the current one, and each earlier one up to some step.

    If a run has checkpoints at steps 5 and 10 and resumes from step 5, the one at step 10 belongs to the same run, but
    not to the new lineage.
    """

    run: str
    session: str
    ancestors: Mapping[str, int] = field(factory=dict)

    @classmethod
    def after(cls, manifest: Manifest, session: str | None = None) -> Lineage:
        """Return the lineage of a session that resumes from a checkpoint; by default, of the checkpoint itself."""
        ancestors = {**manifest.ancestors, manifest.session: manifest.step}
        return cls(manifest.run, manifest.session if session is None else session, ancestors)

    def holds(self, manifest: Manifest) -> bool:
        """Return whether a checkpoint belongs to the lineage."""
        if manifest.run != self.run:
            return False
        return manifest.session == self.session or manifest.step <= self.ancestors.get(manifest.session, -1)


def _on_lines(value: Any) -> str:
    """Return a value as JSON, each entry of an object on a line. json.dumps takes ten times as long to indent."""
    if not value or not isinstance(value, dict):
        return json.dumps(value)
    entries = (f"    {json.dumps(name)}: {json.dumps(inner)}" for name, inner in sorted(value.items()))
    return "{\n" + ",\n".join(entries) + "\n  }"


_SEAL = b',\n  "digest": "'
_END = b"\n}\n"


def seal(body: bytes) -> bytes:
    """Add the digest of a JSON object's bytes as the last entry of the object."""
    digest = f'sha256:{hashlib.sha256(body).hexdigest()}"'
    return body.removesuffix(_END) + _SEAL + digest.encode() + _END


def unseal(data: bytes) -> bytes:
    """Return the bytes that `seal` was given. Raises DamagedCheckpointError if the digest does not match."""
    body = data.rpartition(_SEAL)[0] + _END
    if seal(body) != data:
        raise DamagedCheckpointError("its manifest is damaged: its digest does not match its content")
    return body
