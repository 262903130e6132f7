"""Where the best checkpoint of a run is, which another one may have the name of."""

from __future__ import annotations

from collections.abc import Container, Sequence

from hexloop.domain.checkpoints.lineage import Lineage
from hexloop.domain.checkpoints.names import step_of
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError
from hexloop.ports.storage import Storage


def which_has(storages: Sequence[Storage], name: str, lineage: Lineage, held: Container[int | None] = ()) -> int | None:
    """Which of the storages has the checkpoint `name` of a lineage, by its place among them; None where none has.

    held: the steps that the lineage is known to have on the first of them, where its manifest may be unreadable by now.
    """
    for place, storage in enumerate(storages):
        try:
            has = lineage.holds(read_manifest(storage, name))
        except CheckpointError:
            has = place == 0 and step_of(name) in held
        if has:
            return place
    return None
