"""Checkpoints changed and sealed again: sizes, digests and the seal match, so that only the contents are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import evolve

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.manifest import Manifest, seal
from hexloop.ports.storage import Stored


def reseal(checkpoint: Path, **sizes: int) -> None:
    """Update the sizes and digests of the files in the manifest; files that no longer exist are no longer in it.

    sizes: to write there instead of the true ones, by file.
    """
    storage, path = LocalStorage(checkpoint.parent), checkpoint / "manifest.json"
    manifest = Manifest.from_json(path.read_bytes())
    files = {
        file: storage.digest(f"{checkpoint.name}/{file}") for file in manifest.files if (checkpoint / file).exists()
    }
    files |= {file: Stored(size, files[file].digest) for file, size in sizes.items()}
    path.write_bytes(evolve(manifest, files=files).to_json())


def manifest_entries(checkpoint: Path) -> dict[str, Any]:
    """Return the entries of the manifest without its seal."""
    document: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_bytes())
    del document["digest"]
    return document


def write_manifest(checkpoint: Path, document: object) -> None:
    """Replace the manifest by these entries, sealed."""
    body = (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
    (checkpoint / "manifest.json").write_bytes(seal(body))


def change_manifest(checkpoint: Path, **entries: Any) -> None:
    """Change entries of the manifest, and seal it again."""
    write_manifest(checkpoint, manifest_entries(checkpoint) | entries)
