"""The manifest of a checkpoint, which lists its files with size and digest, and the lineage that it records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import and_, deep_mapping, ge, instance_of, optional

from hexloop.domain.checkpoints.names import stays_inside
from hexloop.domain.errors import DamagedCheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.state import Migration, migrate
from hexloop.ports.storage import Stored

SCHEMA_VERSION = 1

MIGRATIONS: dict[int, Migration] = {}
"""For each earlier schema version, the function that converts its dictionary to the next version."""

_TEXT = instance_of(str)
_COUNT = and_(instance_of(int), ge(0))


def _check_files(_: object, __: Attribute[Any], files: Mapping[str, Stored]) -> None:
    for path, stored in files.items():
        if not stays_inside(path):
            raise ValueError(f"the file name {path!r} is not a path within the checkpoint")
        if not isinstance(stored.size, int) or stored.size < 0 or not isinstance(stored.digest, str):
            raise ValueError(f"the size or digest of {path} is invalid")


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

    run: str = field(validator=_TEXT)
    session: str = field(validator=_TEXT)
    ancestors: Mapping[str, int] = field(validator=deep_mapping(_TEXT, _COUNT, instance_of(dict)))
    parent: str | None = field(validator=optional(_TEXT))
    step: int = field(validator=_COUNT)
    world_size: int = field(validator=and_(instance_of(int), ge(1)))
    environment: Mapping[str, str] = field(validator=deep_mapping(_TEXT, _TEXT, instance_of(dict)))
    files: Mapping[str, Stored] = field(validator=[deep_mapping(_TEXT, instance_of(Stored)), _check_files])

    def to_json(self) -> bytes:
        """Return the manifest as the bytes of a file. Its last entry is the digest of everything before it."""
        document = {name: getattr(self, name) for name in ("run", "session", "parent", "step", "world_size")}
        document["schema_version"] = SCHEMA_VERSION
        document["ancestors"] = dict(self.ancestors)
        document["environment"] = dict(self.environment)
        document["files"] = {
            path: {"size": stored.size, "digest": stored.digest} for path, stored in self.files.items()
        }
        return seal((json.dumps(document, indent=2, sort_keys=True) + "\n").encode())

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Return the manifest in a file's bytes.

        Raises DamagedCheckpointError if the bytes have changed or are not a manifest, and NewerSchemaError if a newer
        hexloop wrote it.
        """
        body = unseal(data)
        try:
            document = migrate(read_json(body), MIGRATIONS, SCHEMA_VERSION)
            del document["schema_version"]
            document["files"] = {path: Stored(**stored) for path, stored in document["files"].items()}
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedCheckpointError(f"its manifest is invalid ({error})") from error


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
    def after(cls, manifest: Manifest, session: str) -> Lineage:
        """Return the lineage of a session that resumes from a checkpoint."""
        return cls(manifest.run, session, {**manifest.ancestors, manifest.session: manifest.step})

    def holds(self, manifest: Manifest) -> bool:
        """Return whether a checkpoint belongs to the lineage."""
        if manifest.run != self.run:
            return False
        return manifest.session == self.session or manifest.step <= self.ancestors.get(manifest.session, -1)


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
