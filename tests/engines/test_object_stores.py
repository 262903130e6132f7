"""Storage in a bucket of a real S3 server on loopback, through s3fs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from fsspec.core import url_to_fs

from hexloop.adapters.storage import fsspec as fsspec_storage
from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.app.testing.contracts.storage import StorageContract
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import Entry, Storage
from tests.engines.object_store import (
    Misbehaviour,
    cut_the_download,
    cut_the_upload,
    delay,
    drop,
    drop_the_answer,
    fail,
    flaky,
    new_bucket,
    object_store,
    options_for,
)
from tests.unit.checkpoints.small_store import make_store, names, save_all, weights_at

PART = 5 << 20
"""The smallest part of a multipart upload in S3."""

SOON = (0.01, 0.02, 0.04)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of an S3 server."""
    with object_store() as address:
        yield address


@pytest.fixture
def bucket(address: str) -> str:
    """Return the URL of a new bucket."""
    return f"s3://{new_bucket(address)}"


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, address: str, bucket: str) -> Storage:
        return FsspecStorage(f"{bucket}/some/runs", options_for(address), digest="blake2b")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use parts of the smallest size."""
    monkeypatch.setattr(fsspec_storage, "BLOCK", PART)


def chunks_of(size: int, chunk: int = 1 << 20) -> list[bytes]:
    """Return bytes that differ between chunks."""
    return [bytes([number % 251]) * min(chunk, size - chunk * number) for number in range(-(-size // chunk))]


def uploads_under_way(address: str, bucket: str) -> list[Any]:
    files, _ = url_to_fs(bucket, **options_for(address))
    return list(files.list_multipart_uploads(bucket.removeprefix("s3://")))


def test_large_files_are_transferred_in_parts(address: str, bucket: str, small_parts: None) -> None:
    """A large file is sent and read in several requests, none for the whole file."""
    with flaky(address, lambda *_: None) as server:
        storage = FsspecStorage(bucket, options_for(server.address))
        data = chunks_of(2 * PART + 7)
        stored = storage.write("folder/large.bin", data)
        assert b"".join(storage.read("folder/large.bin")) == b"".join(data)
        assert storage.digest("folder/large.bin") == stored
        parts = [request for request in server.requests if request.startswith("PUT") and "partNumber" in request]
    assert len(parts) == 3
    assert uploads_under_way(address, bucket) == []


def test_an_interrupted_upload_is_aborted(address: str, bucket: str, small_parts: None) -> None:
    """If the chunks raise an error, no part of the file remains on the server."""

    def breaking_off() -> Iterator[bytes]:
        yield from chunks_of(PART + 1)
        assert len(uploads_under_way(address, bucket)) == 1
        raise EOFError

    storage = FsspecStorage(bucket, options_for(address))
    with pytest.raises(EOFError):
        storage.write("large.bin", breaking_off())
    assert uploads_under_way(address, bucket) == []
    assert storage.list("") == ()


def once_in(every: int, misbehaviour: Misbehaviour) -> Callable[[str, str], Misbehaviour | None]:
    """Return a plan in which every `number`-th request fails."""
    numbers = count(1)
    return lambda method, path: misbehaviour if next(numbers) % every == 0 else None


@pytest.mark.parametrize(
    "misbehaviour",
    [
        pytest.param(drop, id="drops", marks=pytest.mark.matrix),
        pytest.param(drop_the_answer, id="drops answers"),
        pytest.param(fail(500), id="500", marks=pytest.mark.matrix),
        pytest.param(fail(503), id="503", marks=pytest.mark.matrix),
        pytest.param(cut_the_upload, id="cuts uploads", marks=pytest.mark.matrix),
        pytest.param(cut_the_download, id="cuts downloads", marks=pytest.mark.matrix),
    ],
)
def test_failed_requests_are_retried(address: str, bucket: str, small_parts: None, misbehaviour: Misbehaviour) -> None:
    """Saves, rotation and verification give the same result when every fifth request fails."""
    with flaky(address, once_in(5, misbehaviour)) as server:
        storage = FsspecStorage(f"{bucket}/run", options_for(server.address), pauses=SOON)
        stored = storage.write("large.bin", chunks_of(PART + 1))
        assert storage.digest("large.bin") == stored
        save_all(storage, "mine", [1, 2, 3], limit=2)
    calm = FsspecStorage(f"{bucket}/run", options_for(address))
    assert names(calm) == ["checkpoint-2", "checkpoint-3", "large.bin"]
    for step in (2, 3):
        verify(calm, f"checkpoint-{step}")
        assert b"".join(calm.read(f"checkpoint-{step}/weights/all.bin")) == weights_at("mine", step)
    assert calm.digest("large.bin") == stored
    assert uploads_under_way(address, bucket) == []


def test_a_request_that_times_out_is_repeated(address: str, bucket: str) -> None:
    """A request without an answer in time is repeated."""
    late = iter([delay(3.0)])
    with flaky(address, lambda method, path: next(late, None) if method == "PUT" else None) as server:
        storage = FsspecStorage(bucket, options_for(server.address, read_timeout=1), pauses=SOON)
        storage.write("file", [b"data"])
        assert sum(request.startswith("PUT") for request in server.requests) == 2
    assert FsspecStorage(bucket, options_for(address)).list("") == (Entry("file", False),)


def test_a_lost_acknowledgement_of_an_upload_is_handled(address: str, bucket: str, small_parts: None) -> None:
    """An upload whose completion was not acknowledged is found to be complete."""

    def plan(method: str, path: str) -> Misbehaviour | None:
        return drop_the_answer if method == "POST" and "uploadId" in path else None

    with flaky(address, plan) as server:
        storage = FsspecStorage(bucket, options_for(server.address, retries={"max_attempts": 0}), pauses=())
        stored = storage.write("large.bin", chunks_of(PART + 1))
    assert FsspecStorage(bucket, options_for(address)).digest("large.bin") == stored


def test_a_server_that_keeps_failing_is_reported(address: str, bucket: str) -> None:
    """After a bounded number of attempts the error says where, why and how to fix it; existing files are kept."""
    calm = FsspecStorage(bucket, options_for(address))
    calm.write("kept", [b"kept"])
    with flaky(address, lambda *_: fail(503)) as server:
        storage = FsspecStorage(bucket, options_for(server.address, retries={"max_attempts": 0}), pauses=SOON)
        with pytest.raises(StorageError, match=rf"Cannot list everything in {bucket}: .*. Try again later"):
            storage.list("")
        assert len(server.requests) == 1 + len(SOON)
        with pytest.raises(StorageError):
            storage.write("new", [b"new"])
    assert calm.list("") == (Entry("kept", False),)


def test_an_unreachable_store_is_reported(address: str, bucket: str) -> None:
    """A StorageError is raised if no server responds."""
    with flaky(address, lambda *_: None) as server:
        gone = server.address
    with pytest.raises(StorageError, match="Cannot list everything"):
        FsspecStorage(bucket, options_for(gone, retries={"max_attempts": 0}), pauses=()).list("")


def test_a_full_store_is_reported(address: str, bucket: str) -> None:
    """A lack of space raises StorageFullError, without another attempt."""
    with flaky(address, lambda method, _: fail(507) if method == "PUT" else None) as server:
        storage = FsspecStorage(bucket, options_for(server.address, retries={"max_attempts": 0}), pauses=SOON)
        with pytest.raises(StorageFullError, match="Free some space"):
            storage.write("file", [b"data"])
        assert sum(request.startswith("PUT") for request in server.requests) == 1


def test_a_missing_bucket_is_not_created(address: str) -> None:
    """A missing bucket is listed as empty, and a write reports that it is missing."""
    storage = FsspecStorage("s3://no-such-bucket/run", options_for(address))
    assert storage.list("") == ()
    with pytest.raises(StorageError, match="the bucket, or the first folder of the URL, must exist"):
        storage.write("file", [b"data"])


def test_a_run_is_saved_and_resumed(address: str, bucket: str) -> None:
    """Checkpoints in a bucket are published by their manifests, rotated, and found by another process."""
    save_all(FsspecStorage(bucket, options_for(address)), "mine", [1, 2, 3], limit=2)
    storage = FsspecStorage(bucket, options_for(address))
    assert names(storage) == ["checkpoint-2", "checkpoint-3"]
    state = make_store(storage).resume()
    assert state is not None
    assert state.step == 3
