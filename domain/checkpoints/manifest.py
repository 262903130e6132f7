"""The manifest: what a checkpoint is, and every file of it with size and digest."""

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
"""For each schema version before the present one, the function that turns its dictionary into the next version's."""

_TEXT = instance_of(str)
_COUNT = and_(instance_of(int), ge(0))


def _check_files(_: object, __: Attribute[Any], files: Mapping[str, Stored]) -> None:
    for path, stored in files.items():
        if not stays_inside(path):
            raise ValueError(f"it names the file {path!r}, which is not a path within the checkpoint")
        if not isinstance(stored.size, int) or stored.size < 0 or not isinstance(stored.digest, str):
            raise ValueError(f"it gives no size and digest for {path}")


@frozen
class Manifest:
    """What makes a folder a checkpoint.

    run, session: the run that wrote it, and the process's part of that run.
    ancestors: for each earlier session whose work this one goes on from, the last step that counts of it.
    parent: the checkpoint before this one; None for a run's first.
    step: optimizer steps done. world_size: processes that wrote it.
    environment: facts on which the last bits of a result may depend.
    files: each file's path within the folder, with its size and digest; no other file belongs to the checkpoint.
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
        """The manifest as the bytes of a file, the last entry of which is the digest of all before it."""
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
        """The manifest in a file's bytes.

        Raises a CheckpointError that says what is wrong with it: DamagedCheckpointError where a bit of it has changed
        or it is not a manifest at all, NewerSchemaError where a newer hexloop wrote it.
        """
        body = unseal(data)
        try:
            document = migrate(read_json(body), MIGRATIONS, SCHEMA_VERSION)
            del document["schema_version"]
            document["files"] = {path: Stored(**stored) for path, stored in document["files"].items()}
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedCheckpointError(f"its manifest makes no sense ({error})") from error


_SEAL = b',\n  "digest": "'
_END = b"\n}\n"


def seal(body: bytes) -> bytes:
    """Add the digest of a JSON object's bytes as the object's last entry."""
    digest = f'sha256:{hashlib.sha256(body).hexdigest()}"'
    return body.removesuffix(_END) + _SEAL + digest.encode() + _END


def unseal(data: bytes) -> bytes:
    """The bytes that were sealed. Raises DamagedCheckpointError where they are not what they were then."""
    body = data.rpartition(_SEAL)[0] + _END
    if seal(body) != data:
        raise DamagedCheckpointError("its manifest is damaged: it does not have the digest that it names")
    return body


@frozen
class Lineage:
    """The sessions that a run went through: the present one whole, each earlier one up to the step it was left at.

    A run that goes on from its checkpoint at step 5, though it has one at step 10 too, leaves the latter behind: that
    is of the same run, but not of this lineage.
    """

    run: str
    session: str
    ancestors: Mapping[str, int] = field(factory=dict)

    @classmethod
    def after(cls, manifest: Manifest, session: str) -> Lineage:
        """The lineage of a session that goes on from a checkpoint."""
        return cls(manifest.run, session, {**manifest.ancestors, manifest.session: manifest.step})

    def holds(self, manifest: Manifest) -> bool:
        """Whether a checkpoint is one of those that led here."""
        if manifest.run != self.run:
            return False
        return manifest.session == self.session or manifest.step <= self.ancestors.get(manifest.session, -1)
