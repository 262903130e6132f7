"""The fsspec storage: error messages, and behaviour on file systems that are slow, full or lose files."""

from __future__ import annotations

import errno
import traceback
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.domain.errors import ConfigurationError, StorageError, StorageFullError
from hexloop.ports.storage import Publication

SECRETS = ("pa$$word", "pa%24%24word", "s3cr3t-value", "someone", "signed-away")


class AnsweredError(OSError):
    """An error with a server's response, like those of the hub."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} is the answer")
        self.response = SimpleNamespace(status_code=status)


class Unreliable(MemoryFileSystem):  # type: ignore[misc] # fsspec carries no types
    """Raises the next error in `failures`, if any, before each operation."""

    protocol = "unreliable"
    cachable = False
    failures: ClassVar[list[Exception]] = []
    asked = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("unreliable://", "memory://")))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        Unreliable.asked += 1
        if Unreliable.failures:
            raise Unreliable.failures.pop(0)
        return super().ls(path, detail, **options)


@pytest.fixture(autouse=True)
def unreliable() -> Iterator[type[Unreliable]]:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    yield Unreliable
    Unreliable.failures, Unreliable.asked = [], 0


def storage_of(failures: list[Exception], pauses: tuple[float, ...] = (0.0, 0.0)) -> FsspecStorage:
    storage = FsspecStorage(f"unreliable://{uuid.uuid4().hex}/run", pauses=pauses)
    Unreliable.failures = failures
    return storage


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        TimeoutError("late"),
        OSError(errno.EIO, "busy"),
        AnsweredError(429),
        AnsweredError(503),
    ],
)
def test_transient_errors_are_retried(error: Exception) -> None:
    """Two failures are recovered by the third attempt; a third failure is raised."""
    assert storage_of([error, error]).list("") == ()
    with pytest.raises(StorageError, match="Try again later"):
        storage_of([error] * 3).list("")
    assert Unreliable.asked == 6


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError("no"), "Check the credentials"),
        (NotImplementedError("no"), "supports writing"),
        (ValueError("no"), "Check the URL"),
        (AnsweredError(401), "Check the credentials"),
        (AnsweredError(403), "Check the credentials"),
        (AnsweredError(422), "Check the URL"),
    ],
)
def test_permanent_errors_are_raised_at_once(error: Exception, advice: str) -> None:
    """There is one attempt, and the message says how to fix the problem."""
    with pytest.raises(StorageError, match=advice):
        storage_of([error]).list("")
    assert Unreliable.asked == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_raises_storage_full(number: int) -> None:
    """An error for lack of space becomes the error of a full storage."""
    with pytest.raises(StorageFullError, match="Free some space"):
        storage_of([OSError(number, "full")]).list("")


def test_a_server_without_space_raises_storage_full() -> None:
    """A response that reports a lack of space is raised at once, however the error carries it."""
    with pytest.raises(StorageFullError, match="Free some space"):
        storage_of([AnsweredError(507)]).list("")
    assert Unreliable.asked == 1


def test_messages_contain_no_secrets() -> None:
    """User, password, keys and query values appear neither in the location nor in errors or their causes."""
    url = f"unreliable://someone:pa%24%24word@host/{uuid.uuid4().hex}?signature=signed-away"
    options = {"secret": "s3cr3t-value", "client": {"token": "s3cr3t-value"}, "region": "here"}
    storage = FsspecStorage(url, options, pauses=())
    assert storage.capabilities.location.startswith("unreliable://host/")
    cause = ValueError("https://someone:pa$$word@host/?X-Signature=signed-away&region=here")
    error = ConnectionError(f"no answer to {url} with {options}")
    error.__cause__ = cause
    Unreliable.failures = [error]
    with pytest.raises(StorageError, match=r"no answer to .*here") as raised:
        storage.list("")
    shown = "".join(traceback.format_exception(raised.value)) + storage.capabilities.location
    assert [secret for secret in SECRETS if secret in shown] == []


def test_a_cause_without_secrets_is_kept() -> None:
    """An error keeps its cause if there is nothing to hide."""
    cause = ConnectionError("reset")
    with pytest.raises(StorageError) as raised:
        storage_of([cause], pauses=()).list("")
    assert raised.value.__cause__ is cause


def test_it_publishes_without_a_rename() -> None:
    """It has no atomic rename and no local folder."""
    capabilities = FsspecStorage("memory://somewhere/else/").capabilities
    assert capabilities.publication is Publication.MANIFEST_LAST
    assert (capabilities.location, capabilities.local_folder) == ("memory://somewhere/else", None)


def test_an_unknown_digest_is_refused() -> None:
    """The error lists the available digests."""
    with pytest.raises(ConfigurationError, match=r"'md5'.*xxh3-128, blake2b"):
        FsspecStorage("memory://anywhere", digest="md5")
