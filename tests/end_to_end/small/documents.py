"""The JSON documents in a checkpoint's folder: reading and replacing them, together or in a file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import evolve

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.manifest import Manifest

TOGETHER = "run_state.json"


def document_of(checkpoint: Path, name: str) -> dict[str, Any]:
    """Return a document, such as "run_state" or "optimizer"."""
    found = _all(checkpoint)
    document: dict[str, Any] = json.loads(found[name] if found else (checkpoint / f"{name}.json").read_bytes())
    return document


def documents_of(checkpoint: Path) -> dict[str, Any]:
    """Return all documents of rank 0 in the file that they have together, by name."""
    return {name: json.loads(data) for name, data in _all(checkpoint).items()}


def replace_document(checkpoint: Path, name: str, data: bytes) -> None:
    """Replace a document by these bytes, whether or not they are JSON; the manifest stays as it is."""
    if not (found := _all(checkpoint)):
        (checkpoint / f"{name}.json").write_bytes(data)
        return
    found[name] = data
    entries = (json.dumps(each).encode() + b": " + document for each, document in found.items())
    (checkpoint / TOGETHER).write_bytes(b'{"schema_version": 2, ' + b", ".join(entries) + b"}")


def split(checkpoint: Path) -> None:
    """Give each document a file of its own, as hexloop 0.1 did."""
    manifest = Manifest.from_json((checkpoint / "manifest.json").read_bytes())
    documents = _all(checkpoint)
    for name, data in documents.items():
        (checkpoint / f"{name}.json").write_bytes(data)
    storage = LocalStorage(checkpoint.parent)
    files = {
        **manifest.files,
        **{f"{name}.json": storage.digest(f"{checkpoint.name}/{name}.json") for name in documents},
    }
    (checkpoint / "manifest.json").write_bytes(evolve(manifest, files=files).to_json())


def _all(checkpoint: Path) -> dict[str, bytes]:
    """Return each document as JSON; empty if they are not together."""
    content = json.loads((checkpoint / TOGETHER).read_bytes())
    if content.pop("schema_version") == 1:
        return {}
    return {name: json.dumps(document).encode() for name, document in content.items()}
