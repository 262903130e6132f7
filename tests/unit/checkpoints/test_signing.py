"""Signed checkpoints: what is not signed by the storage's key is refused, and signing what exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from hexloop.adapters.signatures import HmacSignatures
from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.adapters.storage.signed import SignedStorage
from hexloop.domain.checkpoints.manifest import MANIFEST, Manifest
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.restoring import restore
from hexloop.domain.checkpoints.selection import newest, publish_staged
from hexloop.domain.checkpoints.signatures import SIGNATURE
from hexloop.domain.checkpoints.signing import EARLIER, sign_checkpoint
from hexloop.domain.checkpoints.survey import FolderStatus, examine
from hexloop.domain.errors import CheckpointError, ConfigurationError, DamagedCheckpointError, SignatureError
from hexloop.ports.storage import Publication, Storage
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import names, save_all, tree

MINE, OTHER = HmacSignatures(b"m" * 32), HmacSignatures(b"o" * 32)
NAME = "checkpoint-10"


@pytest.fixture(params=list(Publication))
def plain(request: pytest.FixtureRequest) -> MemoryStorage:
    return MemoryStorage(publication=request.param)


@pytest.fixture
def signed(plain: MemoryStorage) -> SignedStorage:
    """A storage with two signed checkpoints of one run."""
    storage = SignedStorage(plain, MINE)
    save_all(storage, "mine", [5, 10])
    return storage


def replace(storage: Storage, path: str, data: bytes) -> None:
    storage.remove(path)
    storage.write(path, [data])


def read(storage: Storage, path: str) -> bytes:
    return b"".join(storage.read(path))


def reseal(storage: Storage, name: str = NAME, **changes: Any) -> None:
    """Write a manifest that fits the files, as can be done without the key."""
    manifest = Manifest.from_json(read(storage, f"{name}/{MANIFEST}"))
    files = {path: storage.digest(f"{name}/{path}") for path in manifest.files}
    replace(storage, f"{name}/{MANIFEST}", evolve(manifest, files=files, **changes).to_json())


def test_a_run_with_a_key_resumes_from_what_it_signed(signed: SignedStorage) -> None:
    """Every manifest of a storage with a key has a signature beside it, and is loaded."""
    for step in (5, 10):
        assert read(signed, f"checkpoint-{step}/{SIGNATURE}").startswith(b"hmac-sha256:")
    restored = restore(signed, None, SmallContents())
    assert restored is not None
    assert restored[0].name == NAME


def test_readers_without_a_key_read_signed_checkpoints(plain: MemoryStorage, signed: SignedStorage) -> None:
    """The signature is a file of its own, which the manifest does not list."""
    assert verify(plain, NAME).name == NAME
    assert SIGNATURE not in read_manifest(signed, NAME).files
    assert SIGNATURE in names(plain, NAME)


def change_a_file(storage: Storage) -> None:
    path = next(iter(Manifest.from_json(read(storage, f"{NAME}/{MANIFEST}")).files))
    data = bytearray(read(storage, f"{NAME}/{path}"))
    data[-1] ^= 1
    replace(storage, f"{NAME}/{path}", bytes(data))
    reseal(storage)


def change_the_step(storage: Storage) -> None:
    reseal(storage, parent="checkpoint-6")


def take_another_signature(storage: Storage) -> None:
    change_a_file(storage)
    replace(storage, f"{NAME}/{SIGNATURE}", read(storage, f"checkpoint-5/{SIGNATURE}"))


def sign_with_another_key(storage: Storage) -> None:
    change_a_file(storage)
    sign_checkpoint(storage, NAME, OTHER)


@pytest.mark.parametrize("change", [change_a_file, change_the_step, take_another_signature, sign_with_another_key])
def test_what_was_changed_without_the_key_is_refused(
    plain: MemoryStorage, signed: SignedStorage, change: Callable[[Storage], None]
) -> None:
    """A change with fitting digests passes without a key and is refused with it; an older checkpoint is used."""
    change(plain)
    assert verify(plain, NAME).name == NAME
    before = tree(plain)
    with pytest.raises(SignatureError, match=r"checkpoint-10 in memory cannot be used: its signature is not by this"):
        verify(signed, NAME)
    with pytest.raises(SignatureError, match="not by this key, or it was changed without the key"):
        restore(signed, NAME, SmallContents())
    with pytest.warns(UserWarning, match="A checkpoint is skipped: checkpoint-10"):
        found = newest(signed, quarantine=True)
    assert found is not None
    assert found.name == "checkpoint-5"
    assert tree(plain) == before
    assert examine(signed, NAME).status is FolderStatus.BAD


@pytest.mark.parametrize("content", [b"", b"\xff", b"hmac-sha256:", b"x" * 5000])
def test_files_that_are_no_signature_are_refused(signed: SignedStorage, content: bytes) -> None:
    """An empty, damaged or large file is not a signature."""
    replace(signed, f"{NAME}/{SIGNATURE}", content)
    with pytest.raises(SignatureError, match=r"its signature is not|its manifest\.signature is invalid"):
        read_manifest(signed, NAME)


def test_an_unsigned_checkpoint_is_refused_with_the_way_out(plain: MemoryStorage) -> None:
    """If nothing is signed, the error says how to sign it; nothing is renamed, and no run starts over."""
    save_all(plain, "mine", [5, 10])
    storage, before = SignedStorage(plain, MINE), tree(plain)
    with (
        pytest.raises(
            SignatureError, match=r"can be used with this key\. .* hexloop checkpoints sign checkpoint-\d+ --"
        ),
        pytest.warns(UserWarning, match="it is not signed"),
    ):
        newest(storage, quarantine=True)
    assert tree(plain) == before
    for step in (5, 10):
        sign_checkpoint(plain, f"checkpoint-{step}", MINE)
    assert newest(storage) is not None


def test_a_signature_that_is_lost_while_files_are_verified(plain: MemoryStorage, signed: SignedStorage) -> None:
    """If the only checkpoint loses its signature after the manifests were listed, the error is that of signatures."""
    plain.remove("checkpoint-5")

    class Losing(FaultyStorage):
        reads = 0

        def read(self, path: str, start: int = 0):  # type: ignore[no-untyped-def]
            Losing.reads += path.endswith(SIGNATURE)
            if Losing.reads > 1:
                plain.remove(f"{NAME}/{SIGNATURE}")
            return super().read(path, start)

    with (
        pytest.raises(SignatureError, match="it is not signed"),
        pytest.warns(UserWarning, match="A checkpoint is skipped"),
    ):
        newest(SignedStorage(Losing(plain), MINE))


def test_damage_is_damage(plain: MemoryStorage, signed: SignedStorage) -> None:
    """A manifest or file whose digest is wrong is damaged, as without a key, and is set aside."""
    data = bytearray(read(plain, f"{NAME}/{MANIFEST}"))
    data[50] ^= 1
    replace(plain, f"{NAME}/{MANIFEST}", bytes(data))
    with pytest.raises(DamagedCheckpointError):
        verify(signed, NAME)
    with pytest.warns(UserWarning, match="set aside"):
        assert newest(signed, quarantine=True) is not None


def test_digests_that_can_be_forged_are_neither_signed_nor_trusted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A storage with another digest refuses to sign, and a signed manifest with one is refused."""
    plain = LocalStorage(tmp_path_factory.mktemp("runs"))
    save_all(plain, "mine", [10])
    with pytest.raises(ConfigurationError, match=r"of the kind xxh3-128, which can be forged.*digest 'blake2b'"):
        save_all(SignedStorage(plain, MINE), "mine", [20])
    weak = read_manifest(plain, NAME)
    signature = MINE.sign(b"hexloop: manifest of a checkpoint\n" + weak.to_json())
    plain.write(f"{NAME}/{SIGNATURE}", [f"{signature}\n".encode()])
    with pytest.raises(SignatureError, match="its digests are of the kind xxh3-128, which can be forged"):
        read_manifest(SignedStorage(plain, MINE), NAME)
    sign_checkpoint(plain, NAME, MINE)
    found = verify(SignedStorage(plain, MINE), NAME)
    assert {each.digest.partition(":")[0] for each in found.manifest.files.values()} == {"blake2b"}
    assert evolve(found.manifest, files=weak.files) == weak
    assert EARLIER not in names(plain, NAME)


def test_a_damaged_checkpoint_is_not_signed(plain: MemoryStorage) -> None:
    """Signing verifies every file first."""
    save_all(plain, "mine", [10])
    path = next(iter(read_manifest(plain, NAME).files))
    replace(plain, f"{NAME}/{path}", b"other")
    with pytest.raises(CheckpointError, match="damaged"):
        sign_checkpoint(plain, NAME, MINE)
    assert SIGNATURE not in names(plain, NAME)


@pytest.mark.parametrize("at", range(1, 25))
def test_signing_can_be_cut_short_anywhere(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    """Wherever the process dies while digests are replaced, signing again completes it, and nothing is lost."""
    plain = LocalStorage(tmp_path_factory.mktemp("runs"))
    save_all(plain, "mine", [10])
    before = {path: data for path, data in tree(plain).items() if not path.endswith(MANIFEST)}
    faulty = FaultyStorage(plain, [Fault(at, Effect.DIE)])
    try:
        sign_checkpoint(faulty, NAME, MINE)
    except Died:
        sign_checkpoint(plain, NAME, MINE)
    else:
        assert at > 18
    assert verify(SignedStorage(plain, MINE), NAME).name == NAME
    after = tree(plain)
    assert {path: after[path] for path in before} == before
    assert after.keys() - before.keys() == {f"{NAME}/{MANIFEST}", f"{NAME}/{SIGNATURE}"}


def test_a_staged_checkpoint_is_published_only_if_it_is_signed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A complete staging folder without a signature stays where it is."""
    plain = LocalStorage(tmp_path_factory.mktemp("runs"), "blake2b")
    storage = SignedStorage(plain, MINE)
    save_all(storage, "mine", [5, 10])
    staged = f".unfinished-{'0' * 16}-1-{NAME}"
    plain.move(NAME, staged)
    signature = read(plain, f"{staged}/{SIGNATURE}")
    plain.remove(f"{staged}/{SIGNATURE}")
    publish_staged(storage)
    assert staged in names(plain)
    plain.write(f"{staged}/{SIGNATURE}", [signature])
    publish_staged(storage)
    assert NAME in names(plain)
