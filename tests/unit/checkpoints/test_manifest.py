"""The manifest of a checkpoint: its bytes, seal, checks and migrations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.checkpoints import manifest as module
from hexloop.domain.checkpoints.manifest import SCHEMA_VERSION, Manifest, seal, unseal
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError
from hexloop.ports.storage import Stored

names = st.text(min_size=1).filter(lambda text: not set(text) & set("/\\\0") and text not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
manifests = st.builds(
    Manifest,
    run=st.text(),
    session=st.text(),
    ancestors=st.dictionaries(st.text(), st.integers(0, 2**53), max_size=3),
    parent=st.none() | st.text(),
    step=st.integers(0, 2**53),
    world_size=st.integers(1, 2**53),
    environment=st.dictionaries(st.text(), st.text(), max_size=3),
    files=st.dictionaries(paths, st.builds(Stored, st.integers(0, 2**63 - 1), st.text()), max_size=4),
)
EXAMPLE = Manifest(
    run="a run",
    session="b",
    ancestors={"a": 3},
    parent="checkpoint-5",
    step=10,
    world_size=2,
    environment={"python": "3.11"},
    files={"model.safetensors": Stored(12, "xxh3-128:ab"), "more/state.json": Stored(0, "xxh3-128:cd")},
)


@given(manifests)
def test_a_manifest_is_read_back(manifest: Manifest) -> None:
    """Reading a manifest returns what was written, and its bytes depend only on its contents."""
    data = manifest.to_json()
    assert Manifest.from_json(data) == manifest
    assert evolve(manifest, files=dict(reversed([*manifest.files.items()]))).to_json() == data


def test_a_manifest_is_plain_json() -> None:
    """It is one JSON object with size and digest of each file, and its own digest as the last entry."""
    document = json.loads(EXAMPLE.to_json())
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["files"]["model.safetensors"] == {"size": 12, "digest": "xxh3-128:ab"}
    assert document["parent"] == "checkpoint-5"
    assert list(document)[-1] == "digest"


def test_every_flipped_bit_is_detected() -> None:
    """No single bit of a manifest can change without being refused."""
    data = EXAMPLE.to_json()
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(CheckpointError, match="its manifest is damaged"):
                Manifest.from_json(bytes(changed))


def test_every_truncation_is_detected() -> None:
    """A truncated manifest, and one with additional bytes, is refused."""
    data = EXAMPLE.to_json()
    for cut in [data[:length] for length in range(len(data))] + [data + b"\n", data * 2]:
        with pytest.raises(CheckpointError, match="its manifest is damaged"):
            Manifest.from_json(cut)


@given(st.dictionaries(st.text().filter("digest".__ne__), st.integers() | st.text(), min_size=1))
def test_a_seal_can_be_opened(document: dict[str, Any]) -> None:
    """Opening a seal returns what was sealed, for any contents."""
    body = (json.dumps(document, indent=2) + "\n").encode()
    assert unseal(seal(body)) == body
    assert list(json.loads(seal(body)))[-1] == "digest"


def sealed(**changes: Any) -> bytes:
    """Return the changed example with a correct digest."""
    document = json.loads(unseal(EXAMPLE.to_json())) | changes
    return seal((json.dumps(document, indent=2) + "\n").encode())


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "a/../../b", "", "a\\..\\b"])
def test_a_path_outside_of_the_folder_is_refused(path: str) -> None:
    """A manifest cannot name a file outside its folder, even with a correct digest."""
    with pytest.raises(CheckpointError, match="not a path within the checkpoint"):
        Manifest.from_json(sealed(files={path: {"size": 1, "digest": "x:y"}}))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": "10"},
        {"step": None},
        {"world_size": 0},
        {"run": 5},
        {"parent": 5},
        {"ancestors": [1]},
        {"ancestors": {"a": -1}},
        {"environment": {"python": 3}},
        {"files": None},
        {"files": ["model.safetensors"]},
        {"files": {"a": 5}},
        {"files": {"a": {"size": 1}}},
        {"files": {"a": {"size": "1", "digest": "x:y"}}},
        {"files": {"a": {"size": -1, "digest": "x:y"}}},
        {"files": {"a": {"size": 1, "digest": None}}},
        {"files": {"a": {"size": 1, "digest": "x:y", "mode": 7}}},
        {"unknown": 1},
        {"step": True},
        {"step": 10**400},
        {"world_size": 2**60},
        {"ancestors": {"a": 10**400}},
        {"files": {"a": {"size": 10**400, "digest": "x:y"}}},
        {"files": {"a": {"size": 1.0, "digest": "x:y"}}},
    ],
)
def test_an_invalid_manifest_is_refused(changes: dict[str, Any]) -> None:
    """Values of the wrong type and unknown entries are refused with a reason, even with a correct digest."""
    with pytest.raises(CheckpointError, match="its manifest is invalid"):
        Manifest.from_json(sealed(**changes))


@pytest.mark.parametrize("changes", [{"environment": {"python": 3}}, {"step": -1}, {"run": None}, {"parent": 3}])
def test_what_could_not_be_read_is_not_written(changes: dict[str, Any]) -> None:
    """A checkpoint with such a manifest would be lost."""
    with pytest.raises(ValueError, match=next(iter(changes))):
        evolve(EXAMPLE, **changes).to_json()


def test_all_problems_are_told_at_once() -> None:
    """The message names every wrong entry, with its value cut if it is long."""
    files = {"a": {"size": 1, "digest": 3}, "b": {"size": -1, "digest": "x:y"}}
    with pytest.raises(DamagedCheckpointError) as raised:
        Manifest.from_json(sealed(step=-1, world_size=10**400, run=None, files=files, more=1))
    assert str(raised.value) == (
        "its manifest is invalid (run: None is not text; step: -1 is not between 0 and 9007199254740992; world_size: a "
        "number of 1329 bits is not between 1 and 9007199254740992; files['a'].digest: 3 is not text; files['b']: "
        "{'digest': 'x:y', 'size': -1} is not of a size from 0 to 9223372036854775807; unknown entries 'more')"
    )


def test_a_missing_entry_is_refused() -> None:
    """The message names it, and a manifest with many problems lists the first."""
    document = json.loads(unseal(EXAMPLE.to_json()))
    del document["run"]
    with pytest.raises(DamagedCheckpointError, match="run: it is missing"):
        Manifest.from_json(seal((json.dumps(document) + "\n}\n").encode().replace(b"}\n}\n", b"\n}\n")))
    with pytest.raises(DamagedCheckpointError) as raised:
        Manifest.from_json(sealed(environment={str(number): number for number in range(1000)}))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("document", ["[" * 100_000 + "]" * 100_000, "[1]", "5", "{]"])
def test_other_json_is_refused(document: str) -> None:
    """JSON that is not an object, or is too deeply nested, is refused."""
    body = document.encode() + b"\n}\n"
    with pytest.raises(CheckpointError, match="its manifest is invalid"):
        Manifest.from_json(seal(body))


def test_a_newer_schema_is_refused_with_its_version() -> None:
    """The error names the version of the manifest."""
    with pytest.raises(CheckpointError, match=f"schema version {SCHEMA_VERSION + 1}"):
        Manifest.from_json(sealed(schema_version=SCHEMA_VERSION + 1))


def test_an_older_schema_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest of an earlier version is read through that version's migration."""

    def from_0(document: dict[str, Any]) -> dict[str, Any]:
        processes = document.pop("processes")
        return {**document, "schema_version": 1, "world_size": processes}

    monkeypatch.setattr(module, "MIGRATIONS", {0: from_0})
    old = json.loads(unseal(sealed(schema_version=0, processes=EXAMPLE.world_size)))
    del old["world_size"]
    assert Manifest.from_json(seal((json.dumps(old, indent=2) + "\n").encode())) == EXAMPLE


def test_duplicate_entries_are_refused() -> None:
    """A manifest with a repeated name is ambiguous, and is refused even with a correct digest."""
    body = unseal(EXAMPLE.to_json()).replace(b'"step": ', b'"step": 1,\n  "step": ', 1)
    with pytest.raises(DamagedCheckpointError, match="twice"):
        Manifest.from_json(seal(body))
